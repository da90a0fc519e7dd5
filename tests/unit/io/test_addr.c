/* Every spelling of host:port is understood or refused, and addresses are shown as one would write
 * them. */
#include "support/support.h"

#include <unistd.h>

#include <arpa/inet.h>

#include "io/io.h"

static void test_host_and_port_in_every_shape(void **state) {
    static const struct {
        const char *text, *host;
        uint16_t port;
    } good[] = {
        {"10.0.0.1:8080", "10.0.0.1", 8080},
        {"10.0.0.1", "10.0.0.1", 0},
        {"node-1.example:1", "node-1.example", 1},
        {"my_host", "my_host", 0},
        {"[::1]:65535", "::1", 65535},
        {"[::1]", "::1", 0},
        {"::1", "::1", 0},
        {"fd00::2", "fd00::2", 0},
        {"[fe80::1%eth0]:99", "fe80::1%eth0", 99},
        {"fe80::1%eth0", "fe80::1%eth0", 0},
        {"::ffff:1.2.3.4", "::ffff:1.2.3.4", 0},
        {"1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8", 0},
        {"h:00080", "h", 80},
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(good); i++) {
        struct mc_hostport hp;
        assert_ok(mc_hostport_parse(good[i].text, &hp));
        assert_string_equal(hp.host, good[i].host);
        assert_int_equal(hp.port, good[i].port);
    }
}

static void test_bad_host_and_port_is_refused_and_leaves_the_output_alone(void **state) {
    static const char *const bad[] = {
        "",
        ":",
        ":80",
        "h:",
        "h:0",
        "h:65536",
        "h:99999",
        "h:100000",
        "h:-1",
        "h:+1",
        "h:80x",
        "h:8 0",
        "h: 80",
        "h :80",
        " h:80",
        "h:80 ",
        "h/80",
        "http://h:80",
        "[::1",
        "::1]",
        "[]",
        "[]:80",
        "[::1]80",
        "[::1]:",
        "[::1]:0",
        "[::1]:65536",
        "[::1]:x",
        "[1.2.3.4]:80",
        "[host]:80",
        "a:b:c",
        "1:2:3:4:5:6:7:8:9",
        "[fe80::1%]:80",
        "[fe80::1%averylongscopeid]:80",
        "[fe80::1%a b]:80",
        "[::1]:80:90",
        "::g",
        "h\x01:80",
    };
    for (size_t i = 0; i < MC_ARRAY_LEN(bad); i++) {
        struct mc_hostport hp = {.host = "before", .port = 7};
        assert_int_equal(mc_hostport_parse(bad[i], &hp), MC_ERR_BAD_ADDRESS);
        assert_string_equal(hp.host, "before");
        assert_int_equal(hp.port, 7);
    }
    struct mc_hostport hp;
    assert_int_equal(mc_hostport_parse(NULL, &hp), MC_ERR_BAD_ADDRESS);
    char longest[MC_HOST_MAX + 1];
    memset(longest, 'a', sizeof(longest));
    longest[MC_HOST_MAX] = '\0';
    assert_int_equal(mc_hostport_parse(longest, &hp), MC_ERR_BAD_ADDRESS);
    longest[MC_HOST_MAX - 1] = '\0';
    assert_ok(mc_hostport_parse(longest, &hp));
}

static void test_format_is_the_inverse_of_parse(void **state) {
    char text[MC_HOST_MAX + 8];
    mc_hostport_format("fe80::1%eth0", 80, text, sizeof(text));
    assert_string_equal(text, "[fe80::1%eth0]:80");
    mc_hostport_format("host", 65535, text, sizeof(text));
    assert_string_equal(text, "host:65535");
}

static void test_addresses_are_resolved_and_shown(void **state) {
    static const struct {
        const char *host, *text;
        int family;
    } cases[] = {{"127.0.0.1", "127.0.0.1:80", AF_INET},
                 {"::1", "[::1]:80", AF_INET6},
                 {"::ffff:9.8.7.6", "9.8.7.6:80", AF_INET},
                 {"localhost", NULL, AF_UNSPEC}};
    for (size_t i = 0; i < MC_ARRAY_LEN(cases); i++) {
        struct mc_addr addr;
        char text[MC_HOST_MAX + 8];
        assert_ok(mc_addr_resolve(cases[i].host, 80, &addr));
        assert_int_equal(mc_addr_port(&addr), 80);
        assert_true(cases[i].family == AF_UNSPEC || cases[i].family == addr.storage.ss_family);
        mc_addr_format(&addr, text, sizeof(text));
        if (cases[i].text != NULL) {
            assert_string_equal(text, cases[i].text);
        }
    }
    struct mc_addr addr;
    assert_int_equal(mc_addr_resolve("no.such.host.invalid", 80, &addr), MC_ERR_BAD_ADDRESS);
}

static void test_the_address_to_tell_others_is_this_machines(void **state) {
    char ip[MC_HOST_MAX];
    uint16_t port;
    int fd;
    mc_local_ip(ip, sizeof(ip));
    assert_ok(mc_listen(ip, 0, 1, &fd, &port));
    close(fd);
    setenv("MC_TCP_BIND_ADDRESS", "192.0.2.7", 1);
    mc_local_ip(ip, sizeof(ip));
    unsetenv("MC_TCP_BIND_ADDRESS");
    assert_string_equal(ip, "192.0.2.7");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_and_port_in_every_shape),
        cmocka_unit_test(test_bad_host_and_port_is_refused_and_leaves_the_output_alone),
        cmocka_unit_test(test_format_is_the_inverse_of_parse),
        cmocka_unit_test(test_addresses_are_resolved_and_shown),
        cmocka_unit_test(test_the_address_to_tell_others_is_this_machines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
