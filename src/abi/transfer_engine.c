/*
 * Upstream's C interface of the Transfer Engine: life, segments, memory, questions. See
 * compat/transfer_engine_c.h; transfers are in transfer_engine_batch.c.
 */
#include "compat/transfer_engine_c.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/abi.h"
#include "abi/transfer_engine.h"
#include "base/export.h"
#include "base/log.h"

_Static_assert(sizeof(struct transfer_request) == 40, "upstream's layout");
_Static_assert(sizeof(struct transfer_status) == 16, "upstream's layout");
_Static_assert(sizeof(struct notify_msg) == 16, "upstream's layout");
_Static_assert(sizeof(struct buffer_entry) == 16, "upstream's layout");
_Static_assert(sizeof(struct segment_desc) == 48, "upstream's layout");
_Static_assert(sizeof(struct nic_load_stat) == 80, "upstream's layout");

#define LINKS_MAX 16

/* ---- error numbers ---- */

static const struct {
    enum mc_status status;
    int number; /* [E]; [S] is the same without the sign but for the last two */
} numbers[] = {
    {MC_INVALID_PARAMS, -1},
    {MC_SEGMENT_NOT_FOUND, -1},
    {MC_TASK_NOT_FOUND, -1},
    {MC_ERR_NOT_FOUND, -1},
    {MC_ERR_LIMIT, -2},
    {MC_ERR_NOT_REGISTERED, -3},
    {MC_ERR_BUSY, -4},
    {MC_ERR_OVERLAP, -7},
    {MC_ERR_BAD_ADDRESS, -101},
    {MC_ERR_IO, -102},
    {MC_ERR_ADDRESS_IN_USE, -102},
    {MC_ERR_UNREACHABLE, -102},
    {MC_ERR_CLOSED, -102},
    {MC_ERR_TIMEOUT, -102},
    {MC_ERR_PROTOCOL, -103},
    {MC_ERR_REJECTED, -104},
    {MC_ERR_EXISTS, -200},
    {MC_ERR_NO_MEMORY, -302},
    {MC_NOT_SUPPORTED, -303},
    {MC_ERR_NO_TRANSPORT, -303},
};

int te_error(enum mc_status status) {
    if (status == MC_OK) {
        return 0;
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (numbers[i].status == status) {
            return numbers[i].number;
        }
    }
    return TE_METADATA; /* what a metadata service answered */
}

int te_code(enum mc_status status) {
    enum { NO_TRANSPORT = 8, NOT_IMPLEMENTED = 999 };
    if (status == MC_ERR_NO_TRANSPORT) {
        return NO_TRANSPORT;
    }
    return status == MC_NOT_SUPPORTED ? NOT_IMPLEMENTED : -te_error(status);
}

/* ---- graceful shutdown ---- */

static pthread_mutex_t graceful_lock = PTHREAD_MUTEX_INITIALIZER;
static struct abi_engine *graceful; /* engines whose names are taken back on a signal */
static int graceful_pipe[2] = {-1, -1};
static struct sigaction graceful_old[2];

static void on_signal(int number) {
    int saved = errno;
    unsigned char byte = number == SIGTERM;
    ssize_t ignored = write(graceful_pipe[1], &byte, 1);
    (void)ignored;
    errno = saved;
}

/* Waits for the signal outside of its handler, where locks may be taken. */
static void *graceful_main(void *arg) {
    unsigned char which = 0;
    while (read(graceful_pipe[0], &which, 1) != 1) {
    }
    pthread_mutex_lock(&graceful_lock);
    for (struct abi_engine *e = graceful; e != NULL; e = e->next_graceful) {
        mc_engine_withdraw(e->engine);
    }
    pthread_mutex_unlock(&graceful_lock);
    sigaction(SIGINT, &graceful_old[0], NULL);
    sigaction(SIGTERM, &graceful_old[1], NULL);
    kill(getpid(), which != 0 ? SIGTERM : SIGINT);
    return NULL;
}

static bool graceful_start_locked(void) {
    pthread_t thread;
    sigset_t all, before;
    if (graceful_pipe[0] >= 0) {
        return true;
    }
    if (pipe(graceful_pipe) != 0) {
        return false;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, graceful_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        close(graceful_pipe[0]);
        close(graceful_pipe[1]);
        graceful_pipe[0] = -1;
        return false;
    }
    pthread_detach(thread);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, &graceful_old[0]);
    sigaction(SIGTERM, &action, &graceful_old[1]);
    return true;
}

static void graceful_remove_locked(struct abi_engine *e) {
    struct abi_engine **at = &graceful;
    while (*at != NULL && *at != e) {
        at = &(*at)->next_graceful;
    }
    if (*at == e) {
        *at = e->next_graceful;
    }
}

MC_PUBLIC void enableGracefulShutdown(transfer_engine_t engine) {
    struct abi_engine *e = engine;
    if (e == NULL) {
        return;
    }
    pthread_mutex_lock(&graceful_lock);
    if (graceful_start_locked()) {
        graceful_remove_locked(e);
        e->next_graceful = graceful;
        graceful = e;
    } else {
        mc_error("signals cannot be watched errno=%d", errno);
    }
    pthread_mutex_unlock(&graceful_lock);
}

/* ---- life ---- */

MC_PUBLIC transfer_engine_t createTransferEngine(const char *metadata_conn_string,
                                                 const char *local_server_name,
                                                 const char *ip_or_host_name, uint64_t rpc_port,
                                                 int auto_discover) {
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    if (metadata_conn_string == NULL) {
        mc_error("createTransferEngine: metadata_conn_string is NULL");
        return NULL;
    }
    mc_engine_options_init(&options);
    options.metadata = metadata_conn_string;
    options.local_name = local_server_name;
    options.host = ip_or_host_name;
    bool p2p = strcmp(metadata_conn_string, "P2PHANDSHAKE") == 0;
    if (!p2p && getenv("MC_LEGACY_RPC_PORT_BINDING") != NULL && rpc_port <= UINT16_MAX) {
        options.rpc_port = (uint16_t)rpc_port;
    }
    enum mc_status status = mc_engine_create(&options, &engine);
    if (status != MC_OK) {
        mc_error("createTransferEngine failed metadata=%s name=%s host=%s status=%s",
                 metadata_conn_string, local_server_name != NULL ? local_server_name : "",
                 ip_or_host_name != NULL ? ip_or_host_name : "", mc_status_name(status));
        return NULL;
    }
    struct abi_engine *e = abi_engine_wrap(engine);
    if (e == NULL) {
        mc_engine_destroy(engine);
    }
    return e;
}

MC_PUBLIC void destroyTransferEngine(transfer_engine_t engine) {
    if (engine != NULL) {
        pthread_mutex_lock(&graceful_lock);
        graceful_remove_locked(engine);
        pthread_mutex_unlock(&graceful_lock);
        abi_engine_destroy(engine);
    }
}

MC_PUBLIC int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len) {
    struct abi_engine *e = engine;
    char text[300];
    if (e == NULL || buf_out == NULL) {
        return TE_INVALID;
    }
    const char *host = mc_engine_host(e->engine);
    snprintf(text, sizeof(text), strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u", host,
             (unsigned)mc_engine_rpc_port(e->engine));
    return abi_text_out(buf_out, buf_len, text) ? 0 : TE_INVALID;
}

/* ---- transports ---- */

static const char *own_transport(struct abi_engine *e, const char *proto) {
    const char *name = NULL;
    for (unsigned i = 0; (name = mc_engine_transport(e->engine, i)) != NULL; i++) {
        if (strcmp(name, proto) == 0) {
            return name;
        }
    }
    return NULL;
}

static bool matrix_is_json(const char *text) {
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(root)) {
        mc_error("installTransport: the priority matrix is not a JSON object line=%d column=%d "
                 "reason=\"%s\"",
                 error.line, error.column, root == NULL ? error.text : "not an object");
    }
    bool good = json_is_object(root);
    json_decref(root);
    return good;
}

MC_PUBLIC transport_t installTransport(transfer_engine_t engine, const char *proto, void **args) {
    struct abi_engine *e = engine;
    if (e == NULL || proto == NULL) {
        return NULL;
    }
    const char *name = own_transport(e, proto);
    if (name == NULL) {
        mc_error("installTransport: the engine has no such transport name=%s", proto);
        return NULL;
    }
    if (args != NULL && args[0] != NULL && !matrix_is_json(args[0])) {
        return NULL;
    }
    return (transport_t)(uintptr_t)name;
}

MC_PUBLIC int uninstallTransport(transfer_engine_t engine, const char *proto) {
    struct abi_engine *e = engine;
    return e == NULL || proto == NULL || own_transport(e, proto) == NULL ? TE_INVALID : 0;
}

MC_PUBLIC int discoverTopology(transfer_engine_t engine) {
    struct abi_engine *e = engine;
    char *matrix = e == NULL ? NULL : mc_engine_topology(e->engine);
    bool known = matrix != NULL;
    free(matrix);
    return known ? 0 : e == NULL ? TE_INVALID : TE_CONTEXT;
}

/* ---- segments ---- */

MC_PUBLIC segment_id_t openSegment(transfer_engine_t engine, const char *segment_name) {
    mc_segment_id id = 0;
    if (engine == NULL || segment_name == NULL) {
        return TE_INVALID;
    }
    enum mc_status status = abi_segment_open(engine, segment_name, &id);
    return status == MC_OK ? id : te_error(status);
}

MC_PUBLIC segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name) {
    struct abi_engine *e = engine;
    segment_id_t id = openSegment(engine, segment_name);
    if (id <= LOCAL_SEGMENT) {
        return id;
    }
    enum mc_status status = mc_segment_refresh(e->engine, id);
    if (status != MC_OK) {
        (void)closeSegment(engine, id);
        return te_error(status);
    }
    return id;
}

MC_PUBLIC int closeSegment(transfer_engine_t engine, segment_id_t segment_id) {
    return engine == NULL ? TE_INVALID : te_error(abi_segment_close(engine, segment_id));
}

MC_PUBLIC int warmupEfaSegment(transfer_engine_t engine, const char *segment_name) {
    return engine == NULL || segment_name == NULL ? TE_INVALID : 0;
}

MC_PUBLIC int removeLocalSegment(transfer_engine_t engine, const char *segment_name) {
    struct abi_engine *e = engine;
    if (e == NULL || segment_name == NULL || strcmp(segment_name, mc_engine_name(e->engine)) != 0) {
        return TE_INVALID;
    }
    mc_engine_withdraw(e->engine);
    return 0;
}

MC_PUBLIC int syncSegmentCache(transfer_engine_t engine) {
    if (engine == NULL) {
        return TE_INVALID;
    }
    abi_segments_refresh(engine);
    return 0;
}

/* ---- memory ---- */

MC_PUBLIC int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length,
                                  const char *location, int remote_accessible) {
    struct abi_engine *e = engine;
    if (e == NULL) {
        return TE_INVALID;
    }
    unsigned flags = remote_accessible != 0 ? 0 : MC_MEMORY_LOCAL_ONLY;
    return te_error(mc_memory_register(e->engine, addr, length, location, flags));
}

MC_PUBLIC int unregisterLocalMemory(transfer_engine_t engine, void *addr) {
    struct abi_engine *e = engine;
    return e == NULL ? TE_INVALID : te_error(mc_memory_unregister(e->engine, addr));
}

MC_PUBLIC int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list,
                                       size_t buffer_len, const char *location) {
    if (engine == NULL || (buffer_list == NULL && buffer_len > 0)) {
        return TE_INVALID;
    }
    for (size_t i = 0; i < buffer_len; i++) {
        int failed =
            registerLocalMemory(engine, buffer_list[i].addr, buffer_list[i].length, location, 1);
        if (failed != 0) {
            while (i > 0) {
                (void)unregisterLocalMemory(engine, buffer_list[--i].addr);
            }
            return failed;
        }
    }
    return 0;
}

MC_PUBLIC int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list,
                                         size_t addr_len) {
    int first = 0;
    if (engine == NULL || (addr_list == NULL && addr_len > 0)) {
        return TE_INVALID;
    }
    for (size_t i = 0; i < addr_len; i++) {
        int failed = unregisterLocalMemory(engine, addr_list[i]);
        first = first == 0 ? failed : first;
    }
    return first;
}

/* ---- questions ---- */

MC_PUBLIC int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, size_t *count) {
    struct abi_engine *e = engine;
    if (e == NULL || count == NULL || (stats == NULL && *count > 0)) {
        return -1;
    }
    struct abi_card cards[ABI_CARDS_MAX];
    size_t found = abi_cards(e->engine, cards, ABI_CARDS_MAX);
    for (size_t i = 0; i < found && i < *count; i++) {
        memcpy(stats[i].device_name, cards[i].name, sizeof(stats[i].device_name));
        stats[i].inflight_bytes = cards[i].inflight_bytes;
        stats[i].ewma_bandwidth_bps = cards[i].bandwidth;
    }
    *count = found;
    return 0;
}

static json_t *links_json(struct mc_engine *engine, const struct abi_link *links, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(
            list, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "transport", links[i].transport,
                            "read_bytes", (json_int_t)links[i].bytes[MC_TRANSFER_READ],
                            "write_bytes", (json_int_t)links[i].bytes[MC_TRANSFER_WRITE],
                            "read_slices", (json_int_t)links[i].slices[MC_TRANSFER_READ],
                            "write_slices", (json_int_t)links[i].slices[MC_TRANSFER_WRITE],
                            "failures", (json_int_t)links[i].failures));
    }
    return json_pack("{s:s, s:o}", "segment", mc_engine_name(engine), "links", list);
}

static void links_text(const struct abi_link *links, size_t count, char *out, size_t size) {
    size_t at = (size_t)snprintf(out, size, "%-10s %15s %15s %10s\n", "transport", "read bytes",
                                 "written bytes", "failures");
    for (size_t i = 0; i < count && at < size; i++) {
        at += (size_t)snprintf(out + at, size - at, "%-10s %15llu %15llu %10llu\n",
                               links[i].transport,
                               (unsigned long long)links[i].bytes[MC_TRANSFER_READ],
                               (unsigned long long)links[i].bytes[MC_TRANSFER_WRITE],
                               (unsigned long long)links[i].failures);
    }
}

MC_PUBLIC int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int json) {
    struct abi_engine *e = engine;
    struct abi_link links[LINKS_MAX];
    if (e == NULL || buf_out == NULL || buf_len == 0) {
        return -1;
    }
    size_t count = abi_links(e->engine, links, LINKS_MAX);
    if (json == 0) {
        links_text(links, count, buf_out, buf_len);
        return 0;
    }
    json_t *root = links_json(e->engine, links, count);
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (text == NULL) {
        return -1;
    }
    abi_text_out(buf_out, buf_len, text);
    free(text);
    return 0;
}
