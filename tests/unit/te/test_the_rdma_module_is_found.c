/*
 * The module lies where the build put it, seen from the program; MC_TRANSPORT_DIR names another
 * place and only that. Needs libibverbs, no device.
 */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/support.h"
#include "te/transport/rdma.h"

/* In a process of its own: a module is looked for once a process. */
static bool found_with(const char *dir) {
    pid_t pid = fork();
    int status = 0;
    assert_true(pid >= 0);
    if (pid == 0) {
        if (dir != NULL) {
            setenv("MC_TRANSPORT_DIR", dir, 1);
        }
        const struct rdma_provider *provider = rdma_provider_load();
        char names[4][RDMA_NAME_MAX];
        _exit(provider == NULL ? 1 : provider->list(names, 4) > 1000 ? 2 : 0);
    }
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 0;
}

static char module_dir[4096];

static void test_the_module_of_the_build_is_found(void **state) {
    assert_true(found_with(NULL));
    assert_true(found_with(module_dir));
}

static void test_a_named_folder_is_the_only_one(void **state) {
    char dir[] = "/tmp/mc-module-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    assert_false(found_with(dir));
    /* What is no module is named and left alone. */
    snprintf(path, sizeof(path), "%s/transport-rdma.so", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("no module", file);
    fclose(file);
    assert_false(found_with(dir));
    unlink(path);
    rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_module_of_the_build_is_found),
        cmocka_unit_test(test_a_named_folder_is_the_only_one),
    };
    char path[4200];
    ssize_t n = readlink("/proc/self/exe", module_dir, sizeof(module_dir) - 32);
    if (n <= 0) {
        return 1;
    }
    module_dir[n] = '\0';
    strcpy(strrchr(module_dir, '/'), "/../lib/mooncake");
    snprintf(path, sizeof(path), "%s/transport-rdma.so", module_dir);
    if (access(path, R_OK) != 0) {
        puts("skipped: built without libibverbs");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
