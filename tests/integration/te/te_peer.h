/*
 * A peer in a process of its own: this program executed again, so that both processes start with
 * one thread. The parent tells it what to do over a socket pair; every order is answered by a
 * number.
 */
#ifndef MC_TESTS_TE_PEER_H
#define MC_TESTS_TE_PEER_H

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "standins/cuda.h"
#include "unit/te/te_support.h"

enum peer_order {
    PEER_FILL,
    PEER_VERIFY,
    PEER_UNREGISTER,
    PEER_REGISTER,
    PEER_SHM_GUESTS,
    PEER_QUIT
};
struct peer_message {
    uint64_t order, offset, length, seed;
};
struct peer_config {
    uint64_t size;
    uint32_t allocated;
    uint32_t disable_shm;
    uint32_t rpc_port;  /* 0 = any */
    uint32_t on_device; /* the memory is of the stand-in device (tests/standins/cuda.h) */
};
struct peer_hello {
    char name[280];
    uint64_t addr;
    uint64_t rpc_port;
};
struct peer {
    pid_t pid;
    int fd;
    struct peer_hello hello;
};

static inline void peer_exchange(int fd, bool out, void *bytes, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t n = out ? send(fd, (char *)bytes + done, len - done, MSG_NOSIGNAL)
                        : recv(fd, (char *)bytes + done, len - done, 0);
        if (n <= 0) {
            if (out) {
                return; /* the other end is gone, and the reader will say so */
            }
            fprintf(stderr, "the other process is gone\n");
            _exit(3);
        }
        done += (size_t)n;
    }
}

/* ---- the child ---- */

static inline struct mc_engine *peer_engine_of(bool disable_shm, uint16_t rpc_port,
                                               unsigned reactors) {
    struct mc_engine_options options;
    struct mc_engine *engine = NULL;
    mc_engine_options_init(&options);
    options.host = "127.0.0.1";
    options.disable_shm = disable_shm;
    options.rpc_port = rpc_port;
    options.reactors = reactors;
    if (mc_engine_create(&options, &engine) != MC_OK) {
        fprintf(stderr, "the engine does not start\n");
        _exit(2);
    }
    return engine;
}

static inline struct mc_engine *peer_engine(bool disable_shm, uint16_t rpc_port) {
    return peer_engine_of(disable_shm, rpc_port, 0);
}

#ifdef __SANITIZE_THREAD__
/* Two of its threads would serve the same bytes one after the other, ordered by the other process
 * only. */
#define PEER_REACTORS 1
#else
#define PEER_REACTORS 0
#endif

/* The engine's own threads serve the same bytes for the other process. What orders the two is the
 * talk between the processes, which TSan cannot see: it is told not to look. Plain loops, for it
 * watches memcpy all the same. */
__attribute__((no_sanitize("thread"))) static void peer_store(volatile char *to, const char *from,
                                                              uint64_t length) {
    for (uint64_t i = 0; i < length; i++) {
        to[i] = from[i];
    }
}

__attribute__((no_sanitize("thread"))) static uint64_t peer_same(const volatile char *a,
                                                                 const char *b, uint64_t length) {
    uint64_t same = 0;
    while (same < length && a[same] == b[same]) {
        same++;
    }
    return same;
}

static inline uint64_t peer_obey(struct mc_engine *engine, void *memory, char *bytes, uint64_t size,
                                 const struct peer_message *m) {
    char *at = bytes + m->offset;
    switch (m->order) {
    case PEER_FILL:
    case PEER_VERIFY: { /* answers the number of right bytes from the beginning */
        char *expected = malloc(m->length);
        uint64_t same = m->length;
        mc_test_fill(expected, m->length, m->seed);
        if (m->order == PEER_FILL) {
            peer_store(at, expected, m->length);
        } else {
            same = peer_same(at, expected, m->length);
        }
        free(expected);
        return same;
    }
    case PEER_UNREGISTER:
        return mc_memory_unregister(engine, memory) == MC_OK;
    case PEER_REGISTER:
        return mc_memory_register(engine, memory, size, "*", 0) == MC_OK;
    case PEER_SHM_GUESTS:
        return (uint64_t)te_counter(engine, "mooncake_te_shm_guests");
    default:
        return 0;
    }
}

/* Loads the driver that is a stand-in. */
static inline const struct standin_cuda *peer_cuda(void) {
    void *library = dlopen(MC_STANDIN_CUDA, RTLD_NOW);
    const struct standin_cuda *cuda = library == NULL ? NULL : dlsym(library, "standin_cuda_table");
    if (cuda == NULL) {
        fprintf(stderr, "the stand-in does not load: %s\n", dlerror());
        _exit(2);
    }
    return cuda;
}

/* Registered memory; *bytes is where the processor reaches it. */
static inline void *peer_memory(struct mc_engine *engine, const struct peer_config *config,
                                char **bytes) {
    const struct standin_cuda *cuda = config->on_device ? peer_cuda() : NULL;
    void *memory = NULL;
    uint64_t device = 0;
    enum mc_status status = MC_OK;
    if (config->allocated) {
        status = mc_memory_alloc(engine, config->size, "*", &memory);
    } else {
        if (cuda != NULL && cuda->alloc(0, config->size, &device) == 0) {
            memory = (void *)(uintptr_t)device;
        } else {
            memory = malloc(config->size);
        }
        status = mc_memory_register(engine, memory, config->size, "*", 0);
    }
    if (status != MC_OK) {
        _exit(2);
    }
    *bytes = device != 0 ? cuda->inside(device) : memory;
    return memory;
}

static inline int peer_main(int fd) {
    struct peer_config config;
    struct peer_hello hello = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    peer_exchange(fd, false, &config, sizeof(config));
    struct mc_engine *engine =
        peer_engine_of(config.disable_shm, (uint16_t)config.rpc_port, PEER_REACTORS);
    char *bytes;
    void *memory = peer_memory(engine, &config, &bytes);
    snprintf(hello.name, sizeof(hello.name), "%s", mc_engine_name(engine));
    hello.addr = (uint64_t)(uintptr_t)memory;
    hello.rpc_port = mc_engine_rpc_port(engine);
    peer_exchange(fd, true, &hello, sizeof(hello));
    struct peer_message m;
    do {
        peer_exchange(fd, false, &m, sizeof(m));
        uint64_t answer = peer_obey(engine, memory, bytes, config.size, &m);
        if (m.order == PEER_QUIT) {
            mc_engine_destroy(engine);
        }
        peer_exchange(fd, true, &answer, sizeof(answer));
    } while (m.order != PEER_QUIT);
    return 0;
}

/* main() of a test begins with this. */
static inline void peer_take_over(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "peer") == 0) {
        exit(peer_main(atoi(argv[2])));
    }
}

/* ---- the parent ---- */

static inline void peer_start_with(struct peer *peer, const struct peer_config *config) {
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    peer->pid = fork();
    if (peer->pid == 0) {
        dup2(fds[1], 100); /* without close-on-exec */
        execl("/proc/self/exe", "peer-process", "peer", "100", (char *)NULL);
        _exit(4);
    }
    close(fds[1]);
    peer->fd = fds[0];
    peer_exchange(peer->fd, true, (void *)(uintptr_t)config, sizeof(*config));
    peer_exchange(peer->fd, false, &peer->hello, sizeof(peer->hello));
}

static inline void peer_start(struct peer *peer, uint64_t size, bool allocated, bool disable_shm,
                              uint16_t rpc_port) {
    const struct peer_config config = {
        .size = size, .allocated = allocated, .disable_shm = disable_shm, .rpc_port = rpc_port};
    peer_start_with(peer, &config);
}

static inline uint64_t peer_tell(struct peer *peer, enum peer_order order, uint64_t offset,
                                 uint64_t length, uint64_t seed) {
    struct peer_message m = {order, offset, length, seed};
    uint64_t answer = 0;
    peer_exchange(peer->fd, true, &m, sizeof(m));
    peer_exchange(peer->fd, false, &answer, sizeof(answer));
    return answer;
}

static inline void peer_reap(struct peer *peer) {
    int status;
    waitpid(peer->pid, &status, 0);
    close(peer->fd);
}

static inline void peer_stop(struct peer *peer) {
    int status = -1;
    (void)peer_tell(peer, PEER_QUIT, 0, 0, 0);
    assert_int_equal(waitpid(peer->pid, &status, 0), peer->pid);
    close(peer->fd);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* All its threads stand still when this returns. */
static inline void peer_pause(struct peer *peer) {
    mc_test_stop_child(peer->pid);
}

static inline void peer_kill(struct peer *peer) {
    kill(peer->pid, SIGKILL);
    peer_reap(peer);
}

#endif
