/*
 * Whatever people and peers write as host:port, size, duration, number, command line or
 * configuration file is read as a plain reference reads it, or refused; nothing is read beyond its
 * end (run under ASan) and outputs of refusals stay untouched.
 *
 * Deterministic: a seed (MC_FUZZ_SEED, default 1) gives the mutations; every input is an allocation
 * of its exact size.
 */
#include "support/support.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "base/options.h"
#include "io/io.h"

static struct mc_rng rng;

static void seed(uint64_t salt) {
    const char *text = getenv("MC_FUZZ_SEED");
    mc_rng_seed(&rng, (text != NULL ? strtoull(text, NULL, 0) : 1) * 1000 + salt);
}

/* A malloc'ed mutation of one of the samples; only characters that can stand in a C string. */
static char *mutate(const char *const *samples, size_t count, const char *alphabet) {
    struct mc_buf text = {0};
    mc_buf_puts(&text, samples[mc_rng_below(&rng, count)]);
    for (uint64_t edits = mc_rng_below(&rng, 5); edits > 0; edits--) {
        size_t at = mc_rng_below(&rng, text.len + 1);
        char c = mc_rng_below(&rng, 8) == 0 ? (char)(1 + mc_rng_below(&rng, 255))
                                            : alphabet[mc_rng_below(&rng, strlen(alphabet))];
        switch (mc_rng_below(&rng, 4)) {
        case 0: /* insert */
            mc_buf_putc(&text, c);
            memmove(text.data + at + 1, text.data + at, text.len - 1 - at);
            text.data[at] = c;
            break;
        case 1: /* replace */
            if (at < text.len) {
                text.data[at] = c;
            }
            break;
        case 2: /* cut off */
            text.len = at;
            break;
        default: /* glue another sample on */
            mc_buf_puts(&text, samples[mc_rng_below(&rng, count)]);
            break;
        }
    }
    char *exact = mc_str_dup((struct mc_str){text.data, text.len});
    mc_buf_free(&text);
    return exact;
}

static void test_host_and_port(void **state) {
    static const char *const samples[] = {
        "10.0.0.1:8080",
        "[::1]:80",
        "[fe80::1%eth0]:65535",
        "fd00::1",
        "node-1.example.com:1",
        "host",
        "::ffff:1.2.3.4",
        "[]",
        ":",
        "65536",
        "1:2:3:4:5:6:7:8",
        "",
    };
    size_t accepted = 0;
    seed(1);
    for (int i = 0; i < 100000; i++) {
        char *text = mutate(samples, MC_ARRAY_LEN(samples), "0123456789abcdef:[]%.-_ x");
        struct mc_hostport hp = {"before", 7}, again;
        char shown[MC_HOST_MAX + 8];
        if (mc_hostport_parse(text, &hp) == MC_OK) {
            accepted++;
            assert_true(hp.host[0] != '\0' && strpbrk(hp.host, "[] /") == NULL);
            if (hp.port != 0) { /* what is shown is read as the same */
                mc_hostport_format(hp.host, hp.port, shown, sizeof(shown));
                assert_ok(mc_hostport_parse(shown, &again));
                assert_string_equal(again.host, hp.host);
                assert_int_equal(again.port, hp.port);
            }
        } else {
            assert_string_equal(hp.host, "before");
            assert_int_equal(hp.port, 7);
        }
        free(text);
    }
    assert_true(accepted > 1000);
}

/* The reference: strtold and a unit by its first letter, for texts that the real parser has
 * accepted. */
static long double reference(const char *text, const char *letters, const long double *factors) {
    char *end;
    long double value = strtold(text, &end);
    end += strspn(end, " \t\r\n\v\f");
    if (*end == '\0') {
        return value;
    }
    const char *unit = strchr(letters, *end | 0x20);
    assert_non_null(unit);
    if (*unit == 'm' && (end[1] | 0x20) == 's') { /* ms, not m */
        return value;
    }
    return value * factors[unit - letters];
}

static void check_quantity(const char *text, enum mc_status status, uint64_t got,
                           long double wanted) {
    if (status != MC_OK) {
        assert_int_equal(status, MC_INVALID_PARAMS);
        assert_int_equal(got, 77);
        return;
    }
    long double difference = (long double)got - wanted;
    if (difference > 1 + wanted * 1e-12L || difference < -1 - wanted * 1e-12L) {
        fail_msg("\"%s\" is read as %llu", text, (unsigned long long)got);
    }
}

static void test_sizes_durations_and_numbers(void **state) {
    static const char *const samples[] = {"4 GB",
                                          "1.5g",
                                          "4096",
                                          "infinite",
                                          "16777215t",
                                          "0.1 kib",
                                          "30s",
                                          "250ms",
                                          "1h",
                                          "5 m",
                                          "18446744073709551615",
                                          "0x1F",
                                          "1e5",
                                          "-1",
                                          "."};
    static const long double sizes[] = {1, 1024, 1048576, 1073741824, 1099511627776.0L};
    static const long double times[] = {1000, 60000, 3600000};
    size_t accepted = 0;
    seed(2);
    for (int i = 0; i < 100000; i++) {
        char *text = mutate(samples, MC_ARRAY_LEN(samples), "0123456789.kmgtbish xE+-");
        uint64_t size = 77, ms = 77, number = 77;
        enum mc_status status = mc_parse_size(text, &size);
        accepted += status == MC_OK;
        if (status != MC_OK || size != UINT64_MAX) {
            check_quantity(text, status, size,
                           status == MC_OK ? reference(text, "bkmgt", sizes) : 0);
        }
        status = mc_parse_duration_ms(text, &ms);
        check_quantity(text, status, ms, status == MC_OK ? reference(text, "smh", times) : 0);
        if (mc_parse_u64(text, 0, UINT64_MAX, &number) == MC_OK) {
            char *end;
            errno = 0;
            assert_int_equal(
                strtoull(text, &end, text[0] == '0' && (text[1] | 0x20) == 'x' ? 16 : 10), number);
            assert_true(*end == '\0' && errno == 0);
        } else {
            assert_int_equal(number, 77);
        }
        free(text);
    }
    assert_true(accepted > 1000);
}

/* ---- options ---- */

struct config {
    const char *config_path;
    bool flag;
    int64_t port;
    double ratio;
    const char *name;
    uint64_t size;
    const char *kind;
};

#define FIELD(name, type) #name, type, offsetof(struct config, name)
static const struct mc_option OPTIONS[] = {
    {FIELD(config_path, MC_OPT_STRING), NULL, NULL, NULL, 0, 0, "file", NULL},
    {FIELD(flag, MC_OPT_BOOL), NULL, NULL, NULL, 0, 0, "a flag", NULL},
    {FIELD(port, MC_OPT_I64), "5", NULL, NULL, 1, 65535, "a port", "rpc_port"},
    {FIELD(ratio, MC_OPT_DOUBLE), "0.5", NULL, NULL, 0, 1, "a ratio", NULL},
    {FIELD(name, MC_OPT_STRING), "x", NULL, NULL, 0, 0, "a name", NULL},
    {FIELD(size, MC_OPT_SIZE), "1g", NULL, NULL, 0, 0, "a size", NULL},
    {FIELD(kind, MC_OPT_CHOICE), "a", NULL, "a|b|cd", 0, 0, "a kind", NULL},
};
static const struct mc_option_set SET = {"tool",        "",   "", OPTIONS, MC_ARRAY_LEN(OPTIONS),
                                         "config_path", false};

/* However it ends, every field holds a value its option accepts. */
static bool parse_and_check(int argc, char **argv) {
    struct config config;
    struct mc_option_result result;
    memset(&config, 0xa5, sizeof(config));
    enum mc_status status = mc_options_parse(&SET, argc, argv, &config, &result);
    assert_true(status == MC_OK || status == MC_ERR_USAGE);
    if (status == MC_OK && !result.help_shown) {
        assert_true(config.port >= 1 && config.port <= 65535);
        assert_true(config.ratio >= 0 && config.ratio <= 1);
        assert_true(strcmp(config.kind, "a") == 0 || strcmp(config.kind, "b") == 0 ||
                    strcmp(config.kind, "cd") == 0);
        assert_non_null(config.name);
    } else if (status == MC_ERR_USAGE) {
        assert_int_equal(strncmp(mc_buf_cstr(&result.error), "tool: ", 6), 0);
    }
    mc_options_free(&result);
    return status == MC_OK;
}

static void test_command_lines(void **state) {
    static const char *const samples[] = {
        "--port=1", "--flag", "--noflag",  "-ratio",      "0.5", "--name=abc", "--",         "-",
        "--size",   "4 GB",   "--kind=cd", "--no-flag=1", "--=", "file",       "--rpc-port", ""};
    size_t accepted = 0;
    seed(3);
    for (int i = 0; i < 40000; i++) {
        char *argv[8] = {(char *)"tool"};
        int argc = 1;
        for (uint64_t n = mc_rng_below(&rng, 7); n > 0; n--) {
            argv[argc] = mutate(samples, MC_ARRAY_LEN(samples), "-=_noflagratekidszep0123456789.");
            if (strstr(argv[argc], "config") == NULL && strstr(argv[argc], "-h") == NULL &&
                strstr(argv[argc], "version") == NULL) {
                argc++;
            } else {
                free(argv[argc]);
            }
        }
        argv[argc] = NULL;
        accepted += parse_and_check(argc, argv);
        while (--argc > 0) {
            free(argv[argc]);
        }
    }
    assert_true(accepted > 1000);
}

static void test_configuration_files(void **state) {
    static const char *const samples[] = {
        "port: 1\nname: \"a\\nb\"\nflag: yes\n",
        "{\"port\": 1, \"ratio\": 0.5, \"flag\": true}",
        "# nothing\n",
        "kind: &x b\nname: *x\n",
        "size: 4 GB\n---\nratio: 1\n",
        "? port\n: 2\n",
        "- port\n",
        "{port: [1, {a: b}]}",
        "name: |\n  long\n  text\n",
        "{\"name\": \"\\u00e9\\ud83d\\ude00\", \"size\": 1e3}",
        "%YAML 1.1\n---\nport: 3\n",
    };
    char path[64], option[80];
    size_t accepted = 0;
    seed(4);
    snprintf(path, sizeof(path), "/dev/shm/mc_fuzz_%d", (int)getpid());
    snprintf(option, sizeof(option), "--config_path=%s", path);
    for (int i = 0; i < 8000; i++) {
        char *text = mutate(samples, MC_ARRAY_LEN(samples),
                            "{}[]:,\"'\n -&*|>?#%\\portnamesizeflag0123456789");
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        fputs(text, out);
        fclose(out);
        char *argv[] = {(char *)"tool", option, NULL};
        accepted += parse_and_check(2, argv);
        free(text);
    }
    unlink(path);
    assert_true(accepted > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_and_port),
        cmocka_unit_test(test_sizes_durations_and_numbers),
        cmocka_unit_test(test_command_lines),
        cmocka_unit_test(test_configuration_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
