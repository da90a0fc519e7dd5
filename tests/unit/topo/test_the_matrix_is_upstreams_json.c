/*
 * The priority matrix as text: upstream's files are read and come out as they were; what is not one
 * is refused with its place; damaged text never does harm; and an engine does not start with a file
 * that cannot be used.
 */
#include <stdio.h>
#include <unistd.h>

#include "support/support.h"
#include "te/te.h"
#include "topo/topo.h"

static const char SAMPLE[] =
    "{\"cpu:0\":[[\"mlx5_0\",\"mlx5_1\"],[\"mlx5_2\"]],\"cpu:1\":[[],[\"mlx5_0\"]],"
    "\"cuda:0\":[[\"mlx5_1\"],[]]}";

static enum mc_status parse(const char *text, struct mc_topo_matrix **out, struct mc_buf *error) {
    return mc_topo_matrix_parse(mc_str_from(text), out, error);
}

static void test_round_trip(void **state) {
    struct mc_topo_matrix *matrix = NULL, *again = NULL;
    struct mc_buf error = {0}, text = {0}, pretty = {0};
    assert_ok(parse(SAMPLE, &matrix, &error));
    mc_topo_matrix_print(matrix, false, &text);
    assert_string_equal(mc_buf_cstr(&text), SAMPLE);
    mc_topo_matrix_print(matrix, true, &pretty);
    assert_ok(parse(mc_buf_cstr(&pretty), &again, &error));
    mc_buf_clear(&text);
    mc_topo_matrix_print(again, false, &text);
    assert_string_equal(mc_buf_cstr(&text), SAMPLE);
    assert_int_equal(mc_topo_matrix_rank(matrix, "cpu:0", "mlx5_1"), 0);
    assert_int_equal(mc_topo_matrix_rank(matrix, "cpu:0", "mlx5_2"), 1);
    assert_int_equal(mc_topo_matrix_rank(matrix, "cuda:0", "mlx5_2"), -1);
    assert_int_equal(mc_topo_matrix_rank(matrix, "cuda:5", "mlx5_2"), 1);
    assert_int_equal(error.len, 0);
    mc_topo_matrix_free(matrix);
    mc_topo_matrix_free(again);
    mc_buf_free(&text);
    mc_buf_free(&pretty);
    mc_buf_free(&error);
}

static void test_errors_name_their_place(void **state) {
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "line 1"},
        {"{\"cpu:0\": [[\"a\"], [\"b\"]\n\n]", "line 3, column 1"},
        {"[]", "not an object"},
        {"{\"cpu:0\": [[], []], \"cpu:0\": [[], []]}", "duplicate"},
        {"{\"cpu:0\": {}}", "\"cpu:0\": not a list of two lists"},
        {"{\"cpu:0\": [[]]}", "\"cpu:0\": not a list of two lists"},
        {"{\"cpu:0\": [[], [], []]}", "\"cpu:0\": not a list of two lists"},
        {"{\"cpu:0\": [[], \"mlx5_0\"]}", "\"cpu:0\": the available cards are not a list"},
        {"{\"cuda:3\": [[\"a\", 7], []]}", "\"cuda:3\": number 2 of the preferred cards"},
        {"{\"cuda:3\": [[], [\"\"]]}", "\"cuda:3\": number 1 of the available cards"},
        {"{\"\": [[], []]}", "not the name of a location"},
        {"{\"cpu:0\": [[\"a-name-that-is-longer-than-any-name-of-a-card-of-this-or-another-"
         "machine\"], []]}",
         "number 1"},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(cases); i++) {
        struct mc_topo_matrix *matrix = NULL;
        struct mc_buf error = {0};
        assert_int_equal(parse(cases[i].text, &matrix, &error), MC_INVALID_PARAMS);
        if (strstr(mc_buf_cstr(&error), cases[i].says) == NULL) {
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].text, error.data, cases[i].says);
        }
        assert_null(matrix);
        mc_buf_free(&error);
    }
}

static void test_limits(void **state) {
    struct mc_topo_matrix *matrix = NULL;
    struct mc_buf text = {0}, error = {0};
    for (int over = 0; over < 2; over++) {
        mc_buf_clear(&text);
        mc_buf_puts(&text, "{\"cpu:0\": [[\"c0\"");
        for (int i = 1; i < 256 + over; i++) {
            mc_buf_printf(&text, ",\"c%d\"", i);
        }
        mc_buf_puts(&text, "],[]]}");
        assert_int_equal(parse(mc_buf_cstr(&text), &matrix, &error),
                         over ? MC_INVALID_PARAMS : MC_OK);
    }
    mc_topo_matrix_free(matrix);
    mc_buf_free(&text);
    mc_buf_free(&error);
}

static void test_damaged_text_does_no_harm(void **state) {
    struct mc_rng rng;
    char text[sizeof(SAMPLE)];
    unsigned good = 0, bad = 0;
    mc_rng_seed(&rng, 4711);
    for (int round = 0; round < 20000; round++) {
        struct mc_topo_matrix *matrix = NULL;
        struct mc_buf error = {0};
        memcpy(text, SAMPLE, sizeof(text));
        for (uint64_t n = mc_rng_below(&rng, 4); n > 0; n--) {
            text[mc_rng_below(&rng, sizeof(text) - 1)] = (char)mc_rng_below(&rng, 256);
        }
        size_t len =
            mc_rng_below(&rng, 8) == 0 ? mc_rng_below(&rng, sizeof(text)) : sizeof(text) - 1;
        if (mc_topo_matrix_parse((struct mc_str){text, len}, &matrix, &error) == MC_OK) {
            struct mc_buf out = {0};
            mc_topo_matrix_print(matrix, false, &out);
            mc_buf_free(&out);
            mc_topo_matrix_free(matrix);
            good++;
        } else {
            assert_true(error.len > 0);
            bad++;
        }
        mc_buf_free(&error);
    }
    assert_true(good > 1000 && bad > 1000);
}

/* ---- the engine ---- */

static enum mc_status start_with(const char *content, char **topology) {
    char path[64];
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    snprintf(path, sizeof(path), "/tmp/mc_test_topo_%d.json", (int)getpid());
    if (content != NULL) {
        FILE *file = fopen(path, "w");
        fputs(content, file);
        fclose(file);
    }
    setenv("MC_CUSTOM_TOPO_JSON", path, 1);
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    enum mc_status status = mc_engine_create(&options, &engine);
    if (status == MC_OK) {
        *topology = mc_engine_topology(engine);
        mc_engine_destroy(engine);
    }
    unsetenv("MC_CUSTOM_TOPO_JSON");
    unlink(path);
    return status;
}

static void test_an_unusable_file_stops_the_start(void **state) {
    char *topology = NULL;
    assert_int_equal(start_with("{\"cpu:0\": [[\"mlx5_0\"], ", &topology), MC_INVALID_PARAMS);
    assert_int_equal(start_with("{\"cpu:0\": [\"mlx5_0\", []]}", &topology), MC_INVALID_PARAMS);
    assert_int_equal(start_with(NULL, &topology), MC_FILE_NOT_FOUND);
    assert_ok(start_with(SAMPLE, &topology));
    assert_string_equal(topology, SAMPLE);
    free(topology);
}

static void test_without_a_file_the_machine_counts(void **state) {
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    const struct mc_topo *topo = NULL, *again = NULL;
    const struct mc_topo_matrix *matrix = NULL;
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    assert_ok(mc_engine_create(&options, &engine));
    assert_ok(mc_engine_topo(engine, &topo, &matrix));
    assert_ok(mc_engine_topo(engine, &again, &matrix));
    assert_ptr_equal(topo, again);
    assert_true(matrix->count >= topo->node_count);
    mc_engine_destroy(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_errors_name_their_place),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_damaged_text_does_no_harm),
        cmocka_unit_test(test_an_unusable_file_stops_the_start),
        cmocka_unit_test(test_without_a_file_the_machine_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
