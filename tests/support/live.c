#include "support/live.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define FLAGS_MAX       40
#define READY_WAIT_MS   90000
#define CALL_TIMEOUT_MS 120000

/* ---- processes ---- */

static void program_path(const char *program, char *out, size_t size) {
    char self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(n > 0);
    self[n] = '\0';
    snprintf(out, size, "%s/../bin/%s", dirname(self), program);
}

static void spawn(struct live *p, const char *program, const char **argv, unsigned open_files) {
    char path[600];
    program_path(program, path, sizeof(path));
    snprintf(p->log, sizeof(p->log), "/tmp/mc_live_XXXXXX");
    int fd = mkstemp(p->log);
    assert_true(fd >= 0);
    argv[0] = program;
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
        if (open_files > 0) {
            struct rlimit limit = {open_files, open_files};
            setrlimit(RLIMIT_NOFILE, &limit);
        }
        for (int i = 3; i < 1024; i++) {
            close(i);
        }
        setenv("MC_LOG_LEVEL", "INFO", 1);
        execv(path, (char *const *)argv);
        _exit(127);
    }
    close(fd);
}

static char *log_text(const struct live *p) {
    int fd = open(p->log, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = mc_alloc((size_t)size + 1);
    ssize_t n = pread(fd, text, (size_t)size, 0);
    text[n > 0 ? n : 0] = '\0';
    close(fd);
    return text;
}

bool live_log_says(const struct live *p, const char *text) {
    char *log = log_text(p);
    bool says = strstr(log, text) != NULL;
    free(log);
    return says;
}

bool live_running(struct live *p) {
    int status;
    return p->pid > 0 && waitpid(p->pid, &status, WNOHANG) == 0;
}

static char *wait_for_text(struct live *p, const char *text) {
    for (int i = 0; i < READY_WAIT_MS / 5; i++) {
        bool running = live_running(p);
        char *log = log_text(p);
        const char *at = strstr(log, text);
        if (at != NULL && strchr(at, '\n') != NULL) {
            return log;
        }
        if (!running) {
            p->pid = 0;
            fail_msg("ended before \"%s\":\n%s", text, log);
        }
        free(log);
        usleep(5000);
    }
    fail_msg("no \"%s\" within %d ms", text, READY_WAIT_MS);
    return NULL;
}

static size_t add_flags(const char **argv, size_t n, const char *const *flags) {
    for (; flags != NULL && *flags != NULL; flags++) {
        assert_true(n + 1 < FLAGS_MAX);
        argv[n++] = *flags;
    }
    argv[n] = NULL;
    return n;
}

static uint16_t port_after(const char *log, const char *name) {
    char pattern[32];
    unsigned port = 0;
    snprintf(pattern, sizeof(pattern), " %s=127.0.0.1:", name);
    const char *at = strstr(log, pattern);
    if (at != NULL) {
        assert_int_equal(sscanf(at + strlen(pattern), "%u", &port), 1);
    }
    return (uint16_t)port;
}

void live_master(struct live *m, const char *const *flags, unsigned open_files) {
    const char *argv[FLAGS_MAX] = {"",
                                   "--port=0",
                                   "--rpc_address=127.0.0.1",
                                   "--metrics_port=0",
                                   "--metrics_host=127.0.0.1",
                                   "--http_metadata_server_port=0",
                                   "--http_metadata_server_host=127.0.0.1",
                                   "--client_ttl=60"};
    *m = (struct live){0};
    add_flags(argv, 8, flags);
    spawn(m, "mooncake_master", argv, open_files);
    char *log = wait_for_text(m, "master ready");
    m->rpc = port_after(log, "rpc");
    m->admin = port_after(log, "admin");
    m->metadata = port_after(log, "metadata");
    assert_true(m->rpc != 0 && m->admin != 0);
    snprintf(m->rpc_address, sizeof(m->rpc_address), "127.0.0.1:%u", m->rpc);
    free(log);
}

void live_node_begin(struct live *n, const struct live *master, const char *segment_bytes,
                     const char *const *flags, unsigned open_files) {
    char address[96], bytes[64];
    snprintf(address, sizeof(address), "--master=%s", master->rpc_address);
    snprintf(bytes, sizeof(bytes), "--segment_bytes=%s", segment_bytes);
    const char *argv[FLAGS_MAX] = {"", "node", address, bytes, "--host=127.0.0.1"};
    *n = (struct live){0};
    add_flags(argv, 5, flags);
    spawn(n, "mooncake", argv, open_files);
}

void live_node_ready(struct live *n) {
    char *log = wait_for_text(n, "lends");
    const char *at = strstr(log, "node 127.0.0.1:");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "node %299s", n->name), 1);
    free(log);
}

void live_node(struct live *n, const struct live *master, const char *segment_bytes,
               const char *const *flags, unsigned open_files) {
    live_node_begin(n, master, segment_bytes, flags, open_files);
    live_node_ready(n);
}

int live_end(struct live *p, int signal_number) {
    int status = -1;
    if (p->pid > 0) {
        if (signal_number != 0) { /* (late, it would undo the stop with which LSan begins) */
            kill(p->pid, SIGCONT);
            kill(p->pid, signal_number);
        }
        while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) {
        }
        unlink(p->log);
        p->pid = 0;
    }
    return status;
}

/* ---- talking ---- */

int live_connect(uint16_t port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

bool live_read_to_end(int fd, size_t *bytes, uint64_t timeout_ms) {
    uint64_t until = mc_now_ms(mc_clock_system()) + timeout_ms;
    char buffer[4096];
    *bytes = 0;
    for (;;) {
        uint64_t now = mc_now_ms(mc_clock_system());
        struct pollfd p = {fd, POLLIN, 0};
        if (now >= until || poll(&p, 1, (int)(until - now)) == 0) {
            return false;
        }
        ssize_t n = read(fd, buffer, sizeof(buffer));
        if (n <= 0) {
            return true;
        }
        *bytes += (size_t)n;
    }
}

struct mc_rpc_client *live_client(const struct live *master) {
    struct mc_rpc_client *client;
    assert_ok(mc_rpc_client_create(master->rpc_address, 1, 5000, &client));
    return client;
}

enum mc_status live_call(struct mc_rpc_client *client, enum mc_master_rpc rpc, const void *args,
                         void *ret, struct mc_arena *arena, struct mc_buf *reply) {
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[rpc];
    struct mc_buf body = {0};
    mc_master_rpc_encode_args(desc, 0, args, &body);
    mc_buf_clear(reply);
    enum mc_status status =
        mc_rpc_call(client, desc->function_id, (struct mc_str){body.data, body.len},
                    mc_now_ns(mc_clock_system()) + CALL_TIMEOUT_MS * MC_MS, reply, NULL);
    mc_buf_free(&body);
    MC_TRY(status);
    return mc_master_rpc_decode_ret(desc, 0, (struct mc_str){reply->data, reply->len}, arena, ret);
}
