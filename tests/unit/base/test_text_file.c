/* Files that people name: whole or an error that says why, and never a wait without an end. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/support.h"

#define LIMIT 40000

static char folder[] = "/tmp/mc_text_file_XXXXXX";

static const char *in_folder(const char *name) {
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void expect(const char *path, enum mc_status status, const char *why) {
    struct mc_buf out = {0}, said = {0};
    mc_buf_puts(&out, "old");
    mc_buf_puts(&said, "old");
    assert_int_equal(mc_text_file_read(path, LIMIT, &out, &said), status);
    assert_int_equal(out.len, 0);
    assert_string_equal(mc_buf_cstr(&said), why);
    mc_buf_free(&out);
    mc_buf_free(&said);
}

static void test_a_file_comes_whole_up_to_the_limit(void **state) {
    const size_t sizes[] = {0, 1, 16384, 16385, LIMIT, LIMIT + 1};
    const char *path = in_folder("file");
    static char bytes[LIMIT + 1];
    struct mc_buf out = {0}, why = {0};
    mc_test_fill(bytes, sizeof(bytes), 1);
    for (size_t i = 0; i < MC_ARRAY_LEN(sizes); i++) {
        FILE *file = fopen(path, "w");
        assert_int_equal(fwrite(bytes, 1, sizes[i], file), sizes[i]);
        fclose(file);
        if (sizes[i] > LIMIT) {
            expect(path, MC_ERR_LIMIT, "is larger than 39.1 KiB");
            continue;
        }
        assert_ok(mc_text_file_read(path, LIMIT, &out, &why));
        assert_int_equal(out.len, sizes[i]);
        if (sizes[i] > 0) {
            assert_memory_equal(out.data, bytes, sizes[i]);
        }
    }
    unlink(path);
    mc_buf_free(&out);
    mc_buf_free(&why);
}

static void test_what_is_no_file_says_so_at_once(void **state) {
    const char *fifo = in_folder("fifo");
    int ends[2];
    char name[32];
    struct mc_buf out = {0}, why = {0};
    assert_int_equal(mkfifo(fifo, 0600), 0);
    expect(fifo, MC_FILE_READ_FAIL, "cannot be read: Broken pipe");
    unlink(fifo);
    expect(folder, MC_FILE_READ_FAIL, "cannot be read: Is a directory");
    expect("/dev/zero", MC_ERR_LIMIT, "is larger than 39.1 KiB");
    expect(in_folder("none"), MC_FILE_NOT_FOUND, "cannot be opened: No such file or directory");
    /* A shell's <(command) */
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "text", 4), 4);
    close(ends[1]);
    snprintf(name, sizeof(name), "/dev/fd/%d", ends[0]);
    assert_ok(mc_text_file_read(name, LIMIT, &out, &why));
    assert_string_equal(mc_buf_cstr(&out), "text");
    close(ends[0]);
    mc_buf_free(&out);
    mc_buf_free(&why);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_comes_whole_up_to_the_limit),
        cmocka_unit_test(test_what_is_no_file_says_so_at_once),
    };
    if (mkdtemp(folder) == NULL) {
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
