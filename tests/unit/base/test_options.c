/* Options come from the command line in every gflags form, the environment and YAML or JSON files,
 * the stronger over the weaker; what is wrong is named with its place and what would be accepted.
 */
#include "support/support.h"

#include <stdio.h>
#include <unistd.h>

#include "base/options.h"

struct config {
    const char *config_path;
    bool verbose, tls;
    int64_t rpc_port;
    uint64_t count;
    double ratio;
    const char *name;
    uint64_t segment_size;
    uint64_t lease;
    const char *strategy;
    int64_t offset;
};

#define FIELD(name, type) #name, type, offsetof(struct config, name)
static const struct mc_option OPTIONS[] = {
    {FIELD(config_path, MC_OPT_STRING), "", NULL, NULL, 0, 0, "YAML or JSON file with options",
     NULL},
    {FIELD(verbose, MC_OPT_BOOL), NULL, "T_VERBOSE", NULL, 0, 0, "say more", NULL},
    {FIELD(tls, MC_OPT_BOOL), "true", NULL, NULL, 0, 0, "encrypt", NULL},
    {FIELD(rpc_port, MC_OPT_I64), "50051", "T_PORT", NULL, 1, 65535, "where to listen",
     "port_number"},
    {FIELD(count, MC_OPT_U64), "3", NULL, NULL, 0, 0, "how many", NULL},
    {FIELD(ratio, MC_OPT_DOUBLE), "0.5", NULL, NULL, 0, 1, "how much to evict", NULL},
    {FIELD(name, MC_OPT_STRING), NULL, "T_NAME", NULL, 0, 0, "what to be called", NULL},
    {FIELD(segment_size, MC_OPT_SIZE), "4 GB", NULL, NULL, 0, 0, "memory to give", NULL},
    {FIELD(lease, MC_OPT_DURATION), "10s", NULL, NULL, 1, 3600000, "how long a lease holds", NULL},
    {FIELD(strategy, MC_OPT_CHOICE), "random", NULL, "random|free_ratio_first", 0, 0,
     "where objects go", NULL},
    {FIELD(offset, MC_OPT_I64), NULL, NULL, NULL, 0, 0, "deprecated: does nothing", NULL},
};

static const struct mc_option_set SET = {"tool",  "[options] FILE...",   "Tests the option table.",
                                         OPTIONS, MC_ARRAY_LEN(OPTIONS), "config_path",
                                         false};

struct fixture {
    struct config config;
    struct mc_option_result result;
    enum mc_status status;
};

static void parse(struct fixture *f, const char *const *args) {
    char *argv[32] = {(char *)"tool"};
    int argc = 1;
    for (; *args != NULL; args++) {
        argv[argc++] = (char *)*args;
    }
    memset(&f->config, 0xa5, sizeof(f->config)); /* every field must be set */
    f->status = mc_options_parse(&SET, argc, argv, &f->config, &f->result);
}
#define PARSE(f, ...) parse((f), (const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static void expect_error(struct fixture *f, const char *part) {
    assert_int_equal(f->status, MC_ERR_USAGE);
    if (strstr(mc_buf_cstr(&f->result.error), part) == NULL) {
        fail_msg("error does not say \"%s\": %s", part, f->result.error.data);
    }
    mc_options_free(&f->result);
}

static void test_defaults_fill_every_field(void **state) {
    struct fixture f;
    PARSE(&f);
    assert_ok(f.status);
    assert_string_equal(f.config.config_path, "");
    assert_string_equal(f.config.name, "");
    assert_string_equal(f.config.strategy, "random");
    assert_false(f.config.verbose);
    assert_true(f.config.tls);
    assert_int_equal(f.config.rpc_port, 50051);
    assert_int_equal(f.config.count, 3);
    assert_true(f.config.ratio == 0.5);
    assert_int_equal(f.config.segment_size, 4ull << 30);
    assert_int_equal(f.config.lease, 10000);
    assert_int_equal(f.config.offset, 0);
    assert_int_equal(f.result.positional_count, 0);
    mc_options_free(&f.result);
}

static void test_every_form_of_a_flag(void **state) {
    struct fixture f;
    PARSE(&f, "--rpc_port=1", "-count=2", "--ratio", "0.25", "-name", "-x=y", "--verbose",
          "--notls", "--segment-size=1.5g", "in", "--lease=2m", "-strategy", "free_ratio_first",
          "--offset=-7", "-", "--", "--out", "--");
    assert_ok(f.status);
    assert_int_equal(f.config.rpc_port, 1);
    assert_int_equal(f.config.count, 2);
    assert_true(f.config.ratio == 0.25);
    assert_string_equal(f.config.name, "-x=y");
    assert_true(f.config.verbose);
    assert_false(f.config.tls);
    assert_int_equal(f.config.segment_size, 3ull << 29);
    assert_int_equal(f.config.lease, 120000);
    assert_string_equal(f.config.strategy, "free_ratio_first");
    assert_int_equal(f.config.offset, -7);
    assert_int_equal(f.result.positional_count, 4);
    assert_string_equal(f.result.positional[0], "in");
    assert_string_equal(f.result.positional[1], "-");
    assert_string_equal(f.result.positional[2], "--out");
    assert_string_equal(f.result.positional[3], "--");
    mc_options_free(&f.result);

    PARSE(&f, "--verbose=false", "--tls=0", "--no-verbose", "--port-number=9", "--rpc-port", "10",
          "--name=");
    assert_ok(f.status);
    assert_false(f.config.verbose);
    assert_false(f.config.tls);
    assert_int_equal(f.config.rpc_port, 10); /* the last one wins */
    assert_string_equal(f.config.name, "");
    mc_options_free(&f.result);

    PARSE(&f, "--verbose", "false"); /* as gflags: a bare boolean takes no argument */
    assert_ok(f.status);
    assert_true(f.config.verbose);
    assert_int_equal(f.result.positional_count, 1);
    mc_options_free(&f.result);
}

static void test_wrong_command_lines_are_explained(void **state) {
    struct fixture f;
    PARSE(&f, "--rpc_prot=1");
    expect_error(&f, "unknown option --rpc_prot=1; did you mean --rpc_port?");
    PARSE(&f, "--stratagy", "random");
    expect_error(&f, "did you mean --strategy?");
    PARSE(&f, "--zzzzzz");
    expect_error(&f, "unknown option --zzzzzz\n");
    PARSE(&f, "--rpc_port");
    expect_error(&f, "--rpc_port needs a value");
    PARSE(&f, "--rpc_port=65536");
    expect_error(
        &f,
        "--rpc_port=65536: \"65536\" is not accepted; it must be a whole number from 1 to 65535");
    PARSE(&f, "--rpc_port=0");
    expect_error(&f, "from 1 to 65535");
    PARSE(&f, "--rpc_port=1x");
    expect_error(&f, "\"1x\"");
    PARSE(&f, "--rpc_port=");
    expect_error(&f, "\"\"");
    PARSE(&f, "--count=-1");
    expect_error(&f, "not negative");
    PARSE(&f, "--offset=9223372036854775808");
    expect_error(&f, "whole number");
    PARSE(&f, "--ratio=1.01");
    expect_error(&f, "a number from 0 to 1");
    PARSE(&f, "--ratio=nan");
    expect_error(&f, "a number");
    PARSE(&f, "--verbose=maybe");
    expect_error(&f, "true or false");
    PARSE(&f, "--strategy=rand");
    expect_error(&f, "one of random|free_ratio_first");
    PARSE(&f, "--strategy=");
    expect_error(&f, "one of");
    PARSE(&f, "--segment_size=4 parsecs");
    expect_error(&f, "a size");
    PARSE(&f, "--lease=0");
    expect_error(&f, "a duration");
    PARSE(&f, "--notls=true");
    expect_error(&f, "takes no value");
    PARSE(&f, "--norpc_port");
    expect_error(&f, "unknown option");
    PARSE(&f, "--=1");
    expect_error(&f, "unknown option");
}

/* ---- files ---- */

static char path[64];

static const char *file(const char *suffix, const char *content) {
    snprintf(path, sizeof(path), "/tmp/mc_options_%d%s", (int)getpid(), suffix);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_int_equal(fwrite(content, 1, strlen(content), out), strlen(content));
    fclose(out);
    return path;
}

static void test_yaml_and_json_files(void **state) {
    static const struct {
        const char *suffix, *content;
    } files[] = {
        {".yaml", "# comment\nrpc_port: 77\nratio: 0.75\nverbose: yes\nname: \"a "
                  "b\"\nsegment_size: 64 MB\n"},
        {".yml", "{rpc-port: 77, ratio: 0.75, verbose: true, name: a b, segment_size: 67108864}"},
        {".json", "{\"port_number\": 77, \"ratio\": 0.75, \"verbose\": true, \"name\": \"a b\", "
                  "\"segment_size\": 67108864}"},
        {"", "\n {\"rpc_port\": \"77\", \"ratio\": 0.75, \"verbose\": 1, \"name\": \"a b\", "
             "\"segment_size\": \"64MB\"}"},
        {".conf", "rpc_port: 77\nratio: 7.5e-1\nverbose: on\nname: a b\nsegment_size: 64m"},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(files); i++) {
        struct fixture f;
        PARSE(&f, "--config_path", file(files[i].suffix, files[i].content));
        if (f.status != MC_OK) {
            fail_msg("%s", f.result.error.data);
        }
        assert_int_equal(f.config.rpc_port, 77);
        assert_true(f.config.ratio == 0.75);
        assert_true(f.config.verbose);
        assert_string_equal(f.config.name, "a b");
        assert_int_equal(f.config.segment_size, 64 << 20);
        assert_int_equal(f.config.count, 3);
        mc_options_free(&f.result);
        unlink(path);
    }
}

static void test_wrong_files_are_named_with_the_line(void **state) {
    static const struct {
        const char *suffix, *content, *error;
    } files[] = {
        {".yaml", "rpc_port: 1\n\nstrategi: random\n",
         ".yaml:3: strategi: unknown option; did you mean strategy?"},
        {".yaml", "name: x\nrpc_port: 99999\n", ".yaml:2: rpc_port: \"99999\" is not accepted"},
        {".yaml", "rpc_port: 1\nrpc-port: 2\n", ".yaml:2: rpc-port: given twice"},
        {".yaml", "name:\n  - a\n", ".yaml:2: name: must be a plain value"},
        {".yaml", "name: {a: 1}\n", ".yaml:1: name: must be a plain value"},
        {".yaml", "- a\n", ".yaml:1: must be a plain value"},
        {".yaml", "name: x\nrpc_port: \"1\n", "not valid YAML"},
        {".yaml", "just text\n", ".yaml:1: must be"},
        {".yaml", "config_path: other\n", "a file cannot name another file"},
        {".json", "{\"strategi\": 1}", ".json: strategi: unknown option; did you mean strategy?"},
        {".json", "{\n\"rpc_port\": 1,\n}", ".json:3: not valid JSON"},
        {".json", "{\"rpc_port\": [1]}", "rpc_port: must be a plain value"},
        {".json", "{\"rpc_port\": null}", "rpc_port: must be a plain value"},
        {".json", "[1]", "must be an object"},
        {".json", "", "not valid JSON"},
    };
    struct fixture f;
    for (size_t i = 0; i < MC_ARRAY_LEN(files); i++) {
        PARSE(&f, "--config-path", file(files[i].suffix, files[i].content));
        expect_error(&f, files[i].error);
        unlink(path);
    }
    PARSE(&f, "--config_path=/no/such/file.yaml");
    expect_error(&f, "/no/such/file.yaml: cannot be opened: No such file");
    PARSE(&f, "--config_path=/tmp");
    expect_error(&f, "/tmp: cannot be");
    PARSE(&f, "--config_path", file(".yaml", ""));
    assert_ok(f.status);
    mc_options_free(&f.result);
    unlink(path);
}

static void test_the_stronger_source_wins(void **state) {
    struct fixture f;
    file(".yaml", "rpc_port: 1\nname: file\ncount: 11\n");
    setenv("T_PORT", "2", 1);
    setenv("T_NAME", "", 1); /* empty is not set */
    PARSE(&f, "--config_path", path);
    assert_ok(f.status);
    assert_int_equal(f.config.rpc_port, 2);
    assert_string_equal(f.config.name, "file");
    assert_int_equal(f.config.count, 11);
    mc_options_free(&f.result);
    PARSE(&f, "--rpc_port=3", "--config_path", path);
    assert_ok(f.status);
    assert_int_equal(f.config.rpc_port, 3);
    mc_options_free(&f.result);
    setenv("T_PORT", "x", 1);
    PARSE(&f);
    expect_error(&f, "T_PORT in the environment: \"x\" is not accepted");
    unsetenv("T_PORT");
    unsetenv("T_NAME");
    unlink(path);
}

/* ---- text ---- */

static void test_help_and_markdown_show_every_option(void **state) {
    struct mc_buf help = {0}, page = {0};
    mc_options_help(&SET, &help);
    mc_options_markdown(&SET, &page);
    for (size_t i = 0; i < MC_ARRAY_LEN(OPTIONS); i++) {
        assert_non_null(strstr(mc_buf_cstr(&help), OPTIONS[i].name));
        assert_non_null(strstr(help.data, OPTIONS[i].doc));
        assert_non_null(strstr(mc_buf_cstr(&page), OPTIONS[i].name));
        assert_non_null(strstr(page.data, OPTIONS[i].doc));
    }
    assert_non_null(strstr(help.data, "Usage: tool [options] FILE..."));
    assert_non_null(strstr(help.data, "[default: 50051] [env: T_PORT]"));
    assert_non_null(strstr(help.data, "[also: --port_number]"));
    assert_non_null(strstr(page.data, "`4 GB`"));
    assert_non_null(strstr(page.data, "random\\|free_ratio_first"));
    for (const char *line = help.data; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        assert_true(strcspn(line, "\n") <= 100);
    }
    mc_buf_free(&help);
    mc_buf_free(&page);
}

static void test_help_and_version_are_shown_and_nothing_else_happens(void **state) {
    static const char *const asks[] = {"--help", "-h", "-help", "--version"};
    struct fixture f;
    for (size_t i = 0; i < MC_ARRAY_LEN(asks); i++) {
        PARSE(&f, "--config_path=/no/such/file", asks[i], "--unknown");
        assert_ok(f.status);
        assert_true(f.result.help_shown);
        mc_options_free(&f.result);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_fill_every_field),
        cmocka_unit_test(test_every_form_of_a_flag),
        cmocka_unit_test(test_wrong_command_lines_are_explained),
        cmocka_unit_test(test_yaml_and_json_files),
        cmocka_unit_test(test_wrong_files_are_named_with_the_line),
        cmocka_unit_test(test_the_stronger_source_wins),
        cmocka_unit_test(test_help_and_markdown_show_every_option),
        cmocka_unit_test(test_help_and_version_are_shown_and_nothing_else_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
