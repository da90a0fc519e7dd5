/*
 * The socket of a node's dummies: one request a connection, of a few bytes (wire/dummy_ipc.h). One
 * thread reads all connections as bytes come, so that a dummy that sends slowly, or nothing, holds
 * up nobody; it has a second for its request. What was asked is done at once, on this thread, and
 * what others have sent meanwhile is read before they are hung up on.
 */
#include <poll.h>
#include <unistd.h>

#include "base/log.h"
#include "client/dummies_private.h"
#include "client/store_private.h"
#include "io/io.h"

#define SWEEP_NS        (1 * MC_SEC)
#define REQUEST_NS      (1 * MC_SEC) /* then it is hung up on */
#define CONNECTIONS_MAX 64           /* more wait to be accepted, a second for each so many */
#define NO_FDS_PAUSE_MS 100

struct connection {
    int fd;
    int memory; /* that came with the request; -1 = none */
    uint64_t until_ns;
    uint32_t type;
    size_t done; /* bytes of the type, and then of the request */
    union {
        struct mc_dummy_register memory;
        struct mc_dummy_fd_request fd;
        char bytes[1];
    } request;
};

struct server {
    struct mc_dummies *dummies;
    struct connection connections[CONNECTIONS_MAX];
    size_t count;
};

static uint64_t now_ns(void) {
    return mc_now_ns(mc_clock_system());
}

/* ---- requests ---- */

static void answer(const struct connection *c, const void *message, size_t size) {
    if (mc_local_send(c->fd, message, size, -1) != MC_OK) {
        mc_debug("a dummy did not wait for the answer");
    }
}

static void serve_register(struct mc_dummies *ds, const struct connection *c) {
    const struct mc_dummy_register *r = &c->request.memory;
    const char *why = mc_dummies_take_memory(ds, r, c->memory, c->fd);
    int32_t result = why == NULL ? 0 : -1;
    if (why != NULL) {
        mc_metric_add(&ds->metrics.refused, 1);
        mc_warn_limited("a dummy's memory is refused: client=%llu-%llu base=0x%llx size=%llu "
                        "cause=%s",
                        (unsigned long long)r->client.hi, (unsigned long long)r->client.lo,
                        (unsigned long long)r->base, (unsigned long long)r->size, why);
    }
    answer(c, &result, sizeof(result));
}

/* The hot cache, which this node does not share. */
static void serve_fd_request(const struct connection *c) {
    const struct mc_dummy_fd_answer none = {.status = -1};
    answer(c, &none, sizeof(none));
}

/* ---- connections ---- */

/* Bytes of a request; 0 = there is none of this type. */
static size_t request_bytes(uint32_t type) {
    return type == MC_DUMMY_IPC_REGISTER ? sizeof(struct mc_dummy_register)
           : type == MC_DUMMY_IPC_FD     ? sizeof(struct mc_dummy_fd_request)
                                         : 0;
}

/* Takes what has come; *n is 0 when nothing has. False: it is hung up on. */
static bool receive(struct connection *c, size_t *n) {
    bool in_type = c->done < sizeof(c->type);
    size_t at = in_type ? c->done : c->done - sizeof(c->type);
    char *to = in_type ? (char *)&c->type : c->request.bytes;
    size_t whole = in_type ? sizeof(c->type) : request_bytes(c->type);
    enum mc_status status = mc_local_recv_some(c->fd, to + at, whole - at, n, &c->memory);
    c->done += *n;
    if (status != MC_OK) {
        if (!in_type) {
            mc_warn_limited("a dummy's request did not come whole: type=%u", c->type);
        }
        return false;
    }
    if (in_type && c->done == sizeof(c->type) && request_bytes(c->type) == 0) {
        mc_warn_limited("a dummy asks for something unknown: type=%u", c->type);
        return false;
    }
    return !in_type || c->memory < 0; /* a descriptor comes with the request */
}

/* Reads, and serves what is whole. False when the connection is to be closed. */
static bool advance(struct mc_dummies *ds, struct connection *c) {
    for (size_t n = 1; n > 0;) {
        if (!receive(c, &n)) {
            return false;
        }
        if (c->done >= sizeof(c->type) && c->done - sizeof(c->type) == request_bytes(c->type)) {
            if (c->type == MC_DUMMY_IPC_REGISTER) {
                serve_register(ds, c);
            } else {
                serve_fd_request(c);
            }
            return false;
        }
    }
    return true;
}

static void hang_up(struct server *s, size_t i) {
    struct connection *c = &s->connections[i];
    if (c->memory >= 0) {
        close(c->memory); /* a mapping stays */
    }
    close(c->fd);
    *c = s->connections[--s->count];
}

/* From the last to the first, for the last takes the place of one that goes. Serving one may take
 * long: whoever's time is over by then is read once more, for it may have said all in time. */
static void serve_ready(struct server *s, const struct pollfd *fds) {
    for (size_t i = s->count; i-- > 0;) {
        struct connection *c = &s->connections[i];
        bool over = now_ns() >= c->until_ns;
        if ((fds[i].revents != 0 || over) && !advance(s->dummies, c)) {
            hang_up(s, i);
        } else if (over) {
            mc_warn_limited("a dummy that has connected does not say what it wants");
            hang_up(s, i);
        }
    }
}

static void accept_one(struct server *s) {
    int fd;
    struct mc_addr peer;
    enum mc_status status = mc_accept(s->dummies->listen_fd, &fd, &peer);
    if (status == MC_OK) {
        s->connections[s->count++] =
            (struct connection){.fd = fd, .memory = -1, .until_ns = now_ns() + REQUEST_NS};
    } else if (status == MC_ERR_LIMIT) {
        struct pollfd stop = {s->dummies->stop_fd, POLLIN, 0};
        mc_warn_limited("no descriptors are left for dummy clients");
        (void)poll(&stop, 1, NO_FDS_PAUSE_MS);
    }
}

static int poll_ms(const struct server *s, uint64_t sweep_at) {
    uint64_t until = sweep_at, now = now_ns();
    for (size_t i = 0; i < s->count; i++) {
        until = mc_min_u64(until, s->connections[i].until_ns);
    }
    return until <= now ? 0 : (int)((until - now) / MC_MS) + 1;
}

void *mc_dummies_main(void *arg) {
    struct server s = {.dummies = arg};
    uint64_t sweep_at = now_ns() + SWEEP_NS;
    for (;;) {
        struct pollfd fds[2 + CONNECTIONS_MAX] = {
            {s.dummies->stop_fd, POLLIN, 0},
            {s.dummies->listen_fd, s.count < CONNECTIONS_MAX ? POLLIN : 0, 0}};
        for (size_t i = 0; i < s.count; i++) {
            fds[2 + i] = (struct pollfd){s.connections[i].fd, POLLIN, 0};
        }
        (void)poll(fds, 2 + s.count, poll_ms(&s, sweep_at));
        if (fds[0].revents != 0) {
            break;
        }
        serve_ready(&s, fds + 2);
        if ((fds[1].revents & POLLIN) != 0) {
            accept_one(&s);
        }
        if (now_ns() >= sweep_at) {
            mc_dummies_sweep(s.dummies);
            sweep_at = now_ns() + SWEEP_NS;
        }
    }
    while (s.count > 0) {
        hang_up(&s, 0);
    }
    return NULL;
}
