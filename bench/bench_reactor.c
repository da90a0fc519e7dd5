/*
 * What the reactor costs: a task there and back, and a ping-pong over loopback TCP with the server
 * in a reactor, next to the same ping-pong between two threads that use plain blocking sockets.
 *
 * Usage: bench_reactor [ROUNDS]
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bench.h"
#include "io/io.h"

#define BIG (16u << 20)

static void connect_pair(int pair[2]) {
    int listener;
    uint16_t port;
    struct mc_addr addr, peer;
    MC_ASSERT(mc_listen("127.0.0.1", 0, 4, &listener, &port) == MC_OK);
    MC_ASSERT(mc_addr_resolve("127.0.0.1", port, &addr) == MC_OK);
    MC_ASSERT(mc_connect(&addr, now_ns() + MC_SEC, &pair[0]) == MC_OK);
    MC_ASSERT(mc_accept(listener, &pair[1], &peer) == MC_OK);
    close(listener);
}

/* ---- the two servers ---- */

struct server {
    struct mc_reactor_fd watch;
    struct mc_reactor *reactor;
    size_t reply; /* bytes answered to each byte received */
    char *bytes;
};

static void serve_ready(struct mc_reactor_fd *watch, uint32_t events) {
    struct server *s = mc_container_of(watch, struct server, watch);
    struct mc_stream stream;
    char request[64];
    size_t n = 0;
    mc_stream_plain(&stream, watch->fd);
    if (stream.ops->readv(&stream, &(struct iovec){request, sizeof(request)}, 1, &n) != MC_OK) {
        mc_reactor_remove(s->reactor, watch);
    } else if (n > 0) {
        MC_ASSERT(mc_send_all(watch->fd, &(struct iovec){s->bytes, s->reply}, 1, MC_NO_DEADLINE) ==
                  MC_OK);
    }
}

static void serve_start(void *arg) {
    struct server *s = arg;
    MC_ASSERT(mc_reactor_add(s->reactor, &s->watch) == MC_OK);
}

static void *serve_blocking(void *arg) {
    struct server *s = arg;
    char request;
    while (read(s->watch.fd, &request, 1) == 1) {
        for (size_t done = 0; done < s->reply;) {
            ssize_t put = write(s->watch.fd, s->bytes + done, s->reply - done);
            MC_ASSERT(put > 0);
            done += (size_t)put;
        }
    }
    return NULL;
}

/* ---- the client ---- */

static void ask(const char *what, int fd, size_t reply, int rounds, char *buffer, bool plain) {
    uint64_t start = now_ns();
    for (int i = 0; i < rounds; i++) {
        if (!plain) {
            MC_ASSERT(mc_send_all(fd, &(struct iovec){(char *)"x", 1}, 1, MC_NO_DEADLINE) == MC_OK);
            MC_ASSERT(mc_recv_all(fd, buffer, reply, now_ns() + 10 * MC_SEC) == MC_OK);
            continue;
        }
        MC_ASSERT(write(fd, "x", 1) == 1);
        for (size_t done = 0; done < reply;) {
            ssize_t got = read(fd, buffer + done, reply - done);
            MC_ASSERT(got > 0);
            done += (size_t)got;
        }
    }
    double us = (double)(now_ns() - start) / rounds / 1000;
    printf("%-28s %8zu B %9.2f us %8.2f GB/s\n", what, reply, us, (double)reply / us / 1000);
}

static void ping_pong(size_t reply, int rounds, char *bytes, char *buffer) {
    struct server s = {
        .watch = {.events = EPOLLIN, .on_ready = serve_ready}, .reply = reply, .bytes = bytes};
    int pair[2];
    pthread_t thread;
    connect_pair(pair);
    fcntl(pair[0], F_SETFL, 0);
    fcntl(pair[1], F_SETFL, 0);
    s.watch.fd = pair[1];
    MC_ASSERT(pthread_create(&thread, NULL, serve_blocking, &s) == 0);
    ask("raw blocking sockets", pair[0], reply, rounds, buffer, true);
    close(pair[0]);
    pthread_join(thread, NULL);
    close(pair[1]);

    connect_pair(pair);
    s.watch.fd = pair[1];
    MC_ASSERT(mc_reactor_create("bench", &s.reactor) == MC_OK);
    mc_reactor_call(s.reactor, serve_start, &s);
    ask("reactor, mc_recv_all", pair[0], reply, rounds, buffer, false);
    close(pair[0]);
    mc_reactor_destroy(s.reactor);
    close(pair[1]);
}

static void nothing(void *arg) {}

static void count(struct mc_task *task) {}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 20000;
    struct mc_reactor *r;
    MC_ASSERT(rounds > 0 && mc_reactor_create("bench", &r) == MC_OK);
    uint64_t start = now_ns();
    for (int i = 0; i < rounds; i++) {
        mc_reactor_call(r, nothing, NULL);
    }
    printf("call and wait      %9.2f us\n", (double)(now_ns() - start) / rounds / 1000);
    size_t posts = (size_t)rounds * 10;
    struct mc_task *tasks = mc_zalloc(posts * sizeof(*tasks));
    start = now_ns();
    for (size_t i = 0; i < posts; i++) {
        tasks[i].run = count;
        mc_reactor_post(r, &tasks[i]);
    }
    mc_reactor_call(r, nothing, NULL);
    printf("post, in a stream  %9.3f us\n", (double)(now_ns() - start) / (double)posts / 1000);
    mc_reactor_destroy(r);
    free(tasks);

    static const size_t replies[] = {1, 4096, 65536, 1u << 20, BIG};
    char *bytes = mc_zalloc(BIG), *buffer = mc_zalloc(BIG);
    for (size_t i = 0; i < MC_ARRAY_LEN(replies); i++) {
        int n = (int)mc_min_u64((uint64_t)rounds, (4ull << 30) / replies[i]);
        ping_pong(replies[i], n, bytes, buffer);
    }
    free(bytes);
    free(buffer);
    return 0;
}
