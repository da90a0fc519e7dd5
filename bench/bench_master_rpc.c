/*
 * A load generator for a master's RPCs, ours or upstream's: raw frames over loopback, pipelined on
 * a few connections by one thread, so that the master is the bottleneck. It mounts a segment that
 * does not exist (no byte of data moves), creates keys, looks them up, and prints one JSON object
 * with operations a second, in single calls and in batches.
 *
 * A second thread sends a Ping every 2 ms on a connection of its own and reports how long the
 * answers took under load. Every answer is checked for success; a failure is counted and shown,
 * since a server that refuses is fast.
 *
 * usage: bench_master_rpc HOST:PORT SECONDS [CONNECTIONS [DEPTH]]
 */
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"
#include "io/io.h"
#include "rpc/frame.h"
#include "wire/master_rpc.h"

#define BATCH           128u
#define VALUE_BYTES     4096u
#define MAX_CONNECTIONS 64u
#define MAX_SAMPLES     (1u << 20)
#define KEY_DIGITS      16

static const struct mc_uuid client = {0x1234, 0x5678};
static const struct mc_uuid segment = {0x9abc, 0xdef0};

static void give_up(const char *what) {
    fprintf(stderr, "bench_master_rpc: %s\n", what);
    exit(1);
}

/* ---- requests: a template for each call, with the keys patched into copies ---- */

struct template {
    struct mc_buf frame;
    size_t key_at[BATCH]; /* of each key's digits in the frame */
    unsigned keys;
};

/* "#" and 16 hex digits, found again in the encoded frame by its marker. */
static struct mc_str marker(unsigned i) {
    static char texts[BATCH][KEY_DIGITS + 2];
    snprintf(texts[i], sizeof(texts[i]), "#%016x", 0xabc00000u + i);
    return (struct mc_str){texts[i], KEY_DIGITS + 1};
}

static void make_frame(struct template *t, enum mc_master_rpc rpc, const void *args,
                       unsigned keys) {
    const struct mc_rpc_desc *desc = &mc_master_rpc_table()[rpc];
    struct mc_buf body = {0};
    if (desc->versions[0].args != NULL) {
        mc_master_rpc_encode_args(desc, 0, args, &body);
    }
    struct mc_rpc_request_header header = {
        .magic = MC_RPC_MAGIC, .function_id = desc->function_id, .length = (uint32_t)body.len};
    mc_buf_append(&t->frame, &header, sizeof(header));
    mc_buf_append(&t->frame, body.data, body.len);
    t->keys = keys;
    char *from = t->frame.data;
    for (unsigned i = 0; i < keys; i++) {
        struct mc_str m = marker(i);
        char *at = memmem(from, (size_t)(t->frame.data + t->frame.len - from), m.ptr, m.len);
        MC_ASSERT(at != NULL);
        t->key_at[i] = (size_t)(at + 1 - t->frame.data);
        from = at + m.len;
    }
    mc_buf_free(&body);
}

static void append_request(struct mc_buf *out, const struct template *t, uint64_t first_key) {
    static const char digits[] = "0123456789abcdef";
    size_t start = out->len;
    mc_buf_append(out, t->frame.data, t->frame.len);
    for (unsigned i = 0; i < t->keys; i++) {
        char *at = out->data + start + t->key_at[i];
        uint64_t key = first_key + i;
        for (int d = KEY_DIGITS - 1; d >= 0; d--, key >>= 4) {
            at[d] = digits[key & 15];
        }
    }
}

/* ---- one call and its answer ---- */

/* Whether the answer says success: errc 0, and the (first) expected holds a value. */
static bool answer_ok(const struct mc_rpc_reply_header *header, const char *body, bool vector) {
    if (header->errc != 0 || header->length < 5) {
        return false;
    }
    size_t at = 4;
    unsigned width = 1;
    if (body[0] & 1) {
        unsigned char meta = (unsigned char)body[at++];
        width = 1u << ((meta >> 3) & 3);
        if (meta & 4) {
            at += strnlen(body + at, header->length - at) + 1;
        }
    }
    at += vector ? width : 0;
    return at < header->length && body[at] == 1;
}

static int connect_to(const char *address) {
    struct mc_addr addr;
    int fd;
    char host[256];
    const char *colon = strrchr(address, ':');
    if (colon == NULL) {
        give_up("HOST:PORT");
    }
    snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
    if (mc_addr_resolve(host, (uint16_t)atoi(colon + 1), &addr) != MC_OK ||
        mc_connect(&addr, now_ns() + 5 * MC_SEC, &fd) != MC_OK) {
        give_up("cannot connect");
    }
    return fd;
}

static bool call_once(int fd, const struct template *t, uint64_t key, bool vector) {
    struct mc_buf out = {0};
    struct mc_rpc_reply_header header;
    append_request(&out, t, key);
    char *body = NULL;
    struct iovec iov = {out.data, out.len};
    if (mc_send_all(fd, &iov, 1, now_ns() + 30 * MC_SEC) != MC_OK ||
        mc_recv_all(fd, &header, sizeof(header), now_ns() + 30 * MC_SEC) != MC_OK) {
        give_up("the master closed the connection");
    }
    body = mc_alloc(header.length + 1);
    if (mc_recv_all(fd, body, header.length, now_ns() + 30 * MC_SEC) != MC_OK) {
        give_up("the master closed the connection");
    }
    bool ok = answer_ok(&header, body, vector);
    free(body);
    mc_buf_free(&out);
    return ok;
}

static void mount(int fd) {
    struct mw_segment s = {segment,          MC_STR("load:1"), 0x100000000000ull, 64ull << 30,
                           MC_STR("load:1"), MC_STR("tcp"),    MC_STR("")};
    struct template mount_it = {0}, ping = {0}, remount = {0};
    struct mw_a_mount mount_args = {s, client};
    struct mw_a_remount remount_args = {{&s, 1}, client};
    make_frame(&mount_it, MC_RPC_MountSegment, &mount_args, 0);
    make_frame(&ping, MC_RPC_Ping, &client, 0);
    make_frame(&remount, MC_RPC_ReMountSegment, &remount_args, 0);
    if (!call_once(fd, &mount_it, 0, false) || !call_once(fd, &ping, 0, false) ||
        !call_once(fd, &remount, 0, false)) {
        give_up("mounting a segment fails");
    }
}

/* ---- pings under load ---- */

struct pinger {
    const char *address;
    _Atomic bool stop;
    uint32_t *samples;
    size_t count;
};

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static double percentile(uint32_t *samples, size_t count, double p) {
    if (count == 0) {
        return 0;
    }
    qsort(samples, count, sizeof(*samples), by_value);
    return samples[(size_t)(p * (double)(count - 1))] / 1e3;
}

static void *ping_main(void *arg) {
    struct pinger *p = arg;
    /* The master is measured, not the wait for this program's own load on the same core. Without
     * the privilege the figure is a few milliseconds worse, on both sides alike. */
    (void)setpriority(PRIO_PROCESS, 0, -15);
    struct template ping = {0};
    make_frame(&ping, MC_RPC_Ping, &client, 0);
    int fd = connect_to(p->address);
    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) {
        uint64_t begun = now_ns();
        if (!call_once(fd, &ping, 0, false)) {
            give_up("ping fails");
        }
        if (p->count < MAX_SAMPLES) {
            p->samples[p->count++] = (uint32_t)(now_ns() - begun);
        }
        usleep(2000);
    }
    close(fd);
    return NULL;
}

/* ---- pipelined load ---- */

struct load {
    const char *name;
    const struct template *requests[2]; /* of one operation: PutStart and PutEnd, or one */
    unsigned per_operation;             /* requests */
    unsigned keys;                      /* an operation's */
    bool vector;                        /* the answer begins with a count */
    uint64_t key_space;                 /* keys wrap here; 0 = every key is new */
};
struct connection {
    int fd;
    struct mc_buf out, in;
    size_t sent, in_used;
    unsigned waiting; /* requests without an answer */
};
struct result {
    uint64_t operations, failures, next_key;
    double seconds;
};

static void fill(struct connection *c, const struct load *l, struct result *r, unsigned depth) {
    while (c->waiting + l->per_operation <= depth * l->per_operation) {
        uint64_t key = l->key_space ? r->next_key % l->key_space : r->next_key;
        for (unsigned i = 0; i < l->per_operation; i++) {
            append_request(&c->out, l->requests[i], key);
        }
        c->waiting += l->per_operation;
        r->next_key += l->keys;
    }
}

static void flush_out(struct connection *c) {
    while (c->sent < c->out.len) {
        ssize_t n =
            send(c->fd, c->out.data + c->sent, c->out.len - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            return; /* poll tells when, or that it is broken */
        }
        c->sent += (size_t)n;
    }
    mc_buf_clear(&c->out);
    c->sent = 0;
}

/* Takes the answers that have come; how many. */
static unsigned drain(struct connection *c, const struct load *l, struct result *r) {
    mc_buf_reserve(&c->in, 256u << 10);
    ssize_t n = recv(c->fd, c->in.data + c->in.len, c->in.cap - c->in.len, MSG_DONTWAIT);
    if (n == 0) {
        give_up("the master closed the connection");
    }
    if (n < 0) {
        return 0;
    }
    c->in.len += (size_t)n;
    unsigned answers = 0;
    size_t at = 0;
    struct mc_rpc_reply_header header;
    while (c->in.len - at >= sizeof(header)) {
        memcpy(&header, c->in.data + at, sizeof(header));
        if (c->in.len - at < sizeof(header) + header.length) {
            break;
        }
        r->failures += !answer_ok(&header, c->in.data + at + sizeof(header), l->vector);
        at += sizeof(header) + header.length;
        answers++;
    }
    memmove(c->in.data, c->in.data + at, c->in.len - at);
    c->in.len -= at;
    c->waiting -= answers;
    return answers;
}

static struct result run(const char *address, const struct load *l, double seconds,
                         unsigned connections, unsigned depth, uint64_t first_key) {
    struct connection c[MAX_CONNECTIONS] = {0};
    struct pollfd fds[MAX_CONNECTIONS];
    struct result r = {.next_key = first_key};
    for (unsigned i = 0; i < connections; i++) {
        c[i].fd = connect_to(address);
    }
    uint64_t begun = now_ns(), end = begun + (uint64_t)(seconds * 1e9), answers = 0;
    bool open = true;
    unsigned waiting = 0;
    do {
        /* Keys to look up must exist, however slow this machine is now. */
        open = now_ns() < end || (l->key_space == 0 && r.next_key < first_key + BATCH);
        waiting = 0;
        for (unsigned i = 0; i < connections; i++) {
            if (open) {
                fill(&c[i], l, &r, depth);
            }
            flush_out(&c[i]);
            fds[i] = (struct pollfd){c[i].fd, (short)(POLLIN | (c[i].out.len ? POLLOUT : 0)), 0};
            waiting += c[i].waiting;
        }
        if (waiting == 0 || poll(fds, connections, 10000) <= 0) {
            break;
        }
        for (unsigned i = 0; i < connections; i++) {
            answers += fds[i].revents ? drain(&c[i], l, &r) : 0;
        }
    } while (true);
    if (waiting != 0) {
        give_up("no answer for 10 s");
    }
    r.seconds = (double)(now_ns() - begun) / 1e9;
    r.operations = answers / l->per_operation * l->keys;
    for (unsigned i = 0; i < connections; i++) {
        close(c[i].fd);
        mc_buf_free(&c[i].in);
        mc_buf_free(&c[i].out);
    }
    return r;
}

/* One request at a time; the p50 and p99 in us. */
static void round_trips(int fd, const struct load *l, double seconds, double *p50, double *p99) {
    uint32_t *samples = mc_alloc(MAX_SAMPLES * sizeof(*samples));
    size_t count = 0;
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
    while (now_ns() < end && count < MAX_SAMPLES) {
        uint64_t begun = now_ns();
        if (!call_once(fd, l->requests[0], count % l->key_space, l->vector)) {
            give_up("a single call fails");
        }
        samples[count++] = (uint32_t)(now_ns() - begun);
    }
    *p99 = percentile(samples, count, .99);
    *p50 = percentile(samples, count, .50);
    free(samples);
}

/* ---- what is run ---- */

static struct template t_put_start, t_put_end, t_get, t_exist, t_batch_start, t_batch_end,
    t_batch_get, t_batch_exist;

static void make_templates(void) {
    const struct mc_str tenant = MC_STR("default");
    const struct mw_replicate_config config = {.replica_num = 1};
    static struct mc_str keys[BATCH];
    static uint64_t lengths[BATCH];
    static struct mw_object_meta metas[BATCH];
    for (unsigned i = 0; i < BATCH; i++) {
        keys[i] = marker(i);
        lengths[i] = VALUE_BYTES;
        metas[i] = (struct mw_object_meta){.key = keys[i]};
    }
    struct mw_a_put_start start = {client, keys[0], VALUE_BYTES, config, tenant};
    struct mw_a_put_end end = {client, metas[0], MC_REPLICA_ALL, tenant};
    struct mw_a_key key = {keys[0], tenant};
    struct mw_a_keys many = {{keys, BATCH}, tenant};
    struct mw_a_batch_put_start batch_start = {
        client, {keys, BATCH}, {lengths, BATCH}, config, tenant};
    struct mw_a_batch_put_end batch_end = {client, {metas, BATCH}, MC_REPLICA_ALL, tenant};
    make_frame(&t_put_start, MC_RPC_PutStart, &start, 1);
    make_frame(&t_put_end, MC_RPC_PutEnd, &end, 1);
    make_frame(&t_get, MC_RPC_GetReplicaList, &key, 1);
    make_frame(&t_exist, MC_RPC_ExistKey, &key, 1);
    make_frame(&t_batch_start, MC_RPC_BatchPutStart, &batch_start, BATCH);
    make_frame(&t_batch_end, MC_RPC_BatchPutEnd, &batch_end, BATCH);
    make_frame(&t_batch_get, MC_RPC_BatchGetReplicaList, &many, BATCH);
    make_frame(&t_batch_exist, MC_RPC_BatchExistKey, &many, BATCH);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        give_up("usage: bench_master_rpc HOST:PORT SECONDS [CONNECTIONS [DEPTH]]");
    }
    double seconds = atof(argv[2]);
    unsigned connections = argc > 3 ? (unsigned)atoi(argv[3]) : 4,
             depth = argc > 4 ? (unsigned)atoi(argv[4]) : 32;
    if (connections == 0 || connections > MAX_CONNECTIONS || depth == 0) {
        give_up("connections must be in [1, 64], depth above 0");
    }
    make_templates();
    int fd = connect_to(argv[1]);
    mount(fd);
    struct pinger pinger = {.address = argv[1],
                            .samples = mc_alloc(MAX_SAMPLES * sizeof(uint32_t))};
    pthread_t thread;
    if (pthread_create(&thread, NULL, ping_main, &pinger) != 0) {
        give_up("pthread_create");
    }
    struct load loads[] = {
        {"put", {&t_put_start, &t_put_end}, 2, 1, false, 0},
        {"get", {&t_get}, 1, 1, false, 1},
        {"exist", {&t_exist}, 1, 1, false, 1},
        {"put_batch", {&t_batch_start, &t_batch_end}, 2, BATCH, true, 0},
        {"get_batch", {&t_batch_get}, 1, BATCH, true, 1},
        {"exist_batch", {&t_batch_exist}, 1, BATCH, true, 1},
    };
    uint64_t keys = 0;
    printf("{");
    for (size_t i = 0; i < MC_ARRAY_LEN(loads); i++) {
        struct load *l = &loads[i];
        l->key_space = l->key_space ? keys / BATCH * BATCH : 0;
        unsigned deep = l->keys > 1 ? 4 : depth;
        struct result r = run(argv[1], l, seconds, connections, deep, l->key_space ? 0 : keys);
        keys = l->key_space ? keys : r.next_key;
        printf("\"%s\": {\"per_second\": %.0f, \"operations\": %" PRIu64 ", \"failures\": %" PRIu64
               "}, ",
               l->name, (double)r.operations / r.seconds, r.operations, r.failures);
        fflush(stdout);
    }
    atomic_store_explicit(&pinger.stop, true, memory_order_release);
    pthread_join(thread, NULL);
    double p50, p99;
    round_trips(fd, &loads[1], seconds / 2, &p50, &p99);
    printf("\"get_p50_us\": %.1f, \"get_p99_us\": %.1f, ", p50, p99);
    printf("\"ping_p99_us\": %.1f, \"keys\": %" PRIu64 "}\n",
           percentile(pinger.samples, pinger.count, .99), keys);
    return 0;
}
