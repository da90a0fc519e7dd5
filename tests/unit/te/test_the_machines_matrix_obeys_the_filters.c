/*
 * The priority matrix that an engine makes of its machine, which is another here: of the fixture
 * that hwloc reads instead. MC_TE_FILTERS (or MC_MS_FILTERS) names the cards to use, else
 * MC_TE_FILTERS_EXCLUDE those not to.
 */
#include "unit/te/te_support.h"

#define FIXTURE "tests/unit/topo/fixtures/pcie-switches.xml"

static char *matrix_with(const char *only, const char *only_old, const char *except) {
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    setenv("HWLOC_XMLFILE", FIXTURE, 1);
    setenv("MC_TE_FILTERS", only, 1);
    setenv("MC_MS_FILTERS", only_old, 1);
    setenv("MC_TE_FILTERS_EXCLUDE", except, 1);
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    assert_ok(mc_engine_create(&options, &engine));
    char *text = mc_engine_topology(engine);
    mc_engine_destroy(engine);
    assert_non_null(text);
    return text;
}

static void expect(const char *cards, const char *only, const char *only_old, const char *except) {
    char *text = matrix_with(only, only_old, except);
    for (char card[] = "mlx5_0"; card[5] < '4'; card[5]++) {
        assert_true((strstr(text, card) != NULL) == (strchr(cards, card[5]) != NULL));
    }
    free(text);
}

static void filters_are_obeyed(void **state) {
    expect("0123", "", "", "");
    expect("3", "mlx5_3", "", "");
    expect("12", "", "mlx5_1,mlx5_2", "");
    expect("2", "mlx5_2", "mlx5_1", "");
    expect("13", "", "", "mlx5_0,mlx5_2");
    expect("0", "mlx5_0", "", "mlx5_0"); /* who says which says not which not */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(filters_are_obeyed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
