/*
 * io: the one door to network and disk.
 *
 * Owns sockets, the reactor (epoll, timers, wake-ups between threads), files (io_uring) and HTTP.
 * May call base and the operating system. Nothing above opens a socket or a file in another way.
 */
#ifndef MC_IO_IO_H
#define MC_IO_IO_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/base.h"

/* ---- addresses ---- */

/* host:port, [v6]:port, [v6%scope]:port, host, [v6], a bare v6 address; the port must be 1..65535
 * when given. `port` is 0 when absent. `host` holds no brackets. MC_ERR_BAD_ADDRESS is not logged:
 * the caller knows whose text it was. */
#define MC_HOST_MAX 256
struct mc_hostport {
    char host[MC_HOST_MAX];
    uint16_t port;
};
MC_MUST_USE enum mc_status mc_hostport_parse(const char *text, struct mc_hostport *out);
/* "host:port", brackets round IPv6. out must hold MC_HOST_MAX + 8. */
void mc_hostport_format(const char *host, uint16_t port, char *out, size_t size);

struct mc_addr {
    struct sockaddr_storage storage;
    socklen_t len;
};
/* Resolves the first usable address (blocking; numeric names do not block). */
MC_MUST_USE enum mc_status mc_addr_resolve(const char *host, uint16_t port, struct mc_addr *out);
/* "ip:port" or "[ip]:port". */
void mc_addr_format(const struct mc_addr *addr, char *out, size_t size);
uint16_t mc_addr_port(const struct mc_addr *addr);
/* The address this machine would use to reach others: MC_TCP_BIND_ADDRESS, else the first
 * non-loopback interface, else 127.0.0.1. */
void mc_local_ip(char *out, size_t size);

/* ---- sockets ---- */

/* Binds and listens; host "" or "*" = all interfaces, v6 and v4 together where the kernel has v6.
 * Port 0 = any free. On MC_ERR_ADDRESS_IN_USE the log names host and port. Non-blocking,
 * close-on-exec; *bound_port is what was got. */
MC_MUST_USE enum mc_status mc_listen(const char *host, uint16_t port, int backlog, int *fd,
                                     uint16_t *bound_port);
/* A free port of [min, max], tried in random order: bind is the test, so two processes never share
 * one. Those that this process drew before come last. */
MC_MUST_USE enum mc_status mc_listen_range(const char *host, uint16_t min, uint16_t max,
                                           struct mc_rng *rng, int backlog, int *fd,
                                           uint16_t *bound_port);
/* Connects within the deadline (absolute, mc_clock_system). Non-blocking, TCP_NODELAY, keep-alive,
 * close-on-exec. */
MC_MUST_USE enum mc_status mc_connect(const struct mc_addr *addr, uint64_t deadline_ns, int *fd);
/* The same without waiting: begins to connect; when the descriptor is writable or has an error,
 * mc_connect_end says how it went (errno tells why not). The caller closes it in either case. */
MC_MUST_USE enum mc_status mc_connect_begin(const struct mc_addr *addr, int *fd);
MC_MUST_USE enum mc_status mc_connect_end(int fd);
/* How long the kernel has seen a round trip of this connection take, smoothed. Right after
 * connecting that of the handshake, which no program's wake-up is part of; after a handshake of TLS
 * that of its answers too, which the peer's program had to make. 0 when it is not known. */
uint32_t mc_socket_rtt_us(int fd);
/* Accepts one; MC_ERR_NOT_FOUND when none waits. MC_ERR_LIMIT when descriptors have run out: the
 * listener stays readable, so stop watching it for a while (mc_acceptor does). Same socket options
 * as mc_connect. Of a local socket too; *peer is then zero. */
MC_MUST_USE enum mc_status mc_accept(int listen_fd, int *fd, struct mc_addr *peer);
/* Blocking helpers on a non-blocking socket: all bytes or an error (MC_ERR_TIMEOUT, MC_ERR_CLOSED,
 * MC_ERR_IO). */
MC_MUST_USE enum mc_status mc_send_all(int fd, const struct iovec *iov, int iov_count,
                                       uint64_t deadline_ns);
MC_MUST_USE enum mc_status mc_recv_all(int fd, void *buffer, size_t len, uint64_t deadline_ns);
/* Waits until the socket is ready for `events` (POLLIN, POLLOUT) or has failed (the next call on it
 * says how); MC_ERR_TIMEOUT. */
MC_MUST_USE enum mc_status mc_wait_ready(int fd, short events, uint64_t deadline_ns);

/* Of a socket whose reader waits for nothing else: mc_recv_some then sleeps in the read itself, a
 * system call less than waiting and reading (1.2 us of a 15 us round trip). All else goes on as if
 * it were non-blocking. */
void mc_sleep_in_reads(int fd);
#define MC_READ_SLEEP_NS (50 * MC_MS) /* at most so long in one read */
/* Reads at least one byte, at most what fits. MC_ERR_TIMEOUT, MC_ERR_CLOSED, MC_ERR_IO. */
MC_MUST_USE enum mc_status mc_recv_some(int fd, const struct iovec *iov, int iov_count,
                                        uint64_t deadline_ns, size_t *n);

/* ---- messages between processes of one host ---- */

/* Sequenced packets over an abstract unix socket (it has no file; who is in the same network
 * namespace reaches it). They can carry a file descriptor, and the kernel says who is at the other
 * end. */
MC_MUST_USE enum mc_status mc_local_listen(const char *name, int *fd); /* non-blocking */
/* Blocking, every later operation too, each at most timeout_ms.
 * MC_ERR_UNREACHABLE, MC_ERR_TIMEOUT. */
MC_MUST_USE enum mc_status mc_local_connect(const char *name, uint32_t timeout_ms, int *fd);
/* One whole message; pass_fd -1 = none. MC_ERR_TIMEOUT when there is no room (in time). */
MC_MUST_USE enum mc_status mc_local_send(int fd, const void *message, size_t len, int pass_fd);
/* One message of exactly `len` bytes, with one descriptor at most, else MC_ERR_PROTOCOL;
 * *passed_fd is -1 when none came.
 * MC_ERR_CLOSED; MC_ERR_TIMEOUT when none has come (in time). */
MC_MUST_USE enum mc_status mc_local_recv(int fd, void *message, size_t len, int *passed_fd);

/* The same as byte streams, which is what upstream speaks. mc_local_send serves them too. */
MC_MUST_USE enum mc_status mc_local_listen_stream(const char *name, int *fd); /* non-blocking */
MC_MUST_USE enum mc_status mc_local_connect_stream(const char *name, uint32_t timeout_ms, int *fd);
/* Exactly `len` bytes; *passed_fd is a descriptor that came with them, -1 when none did.
 * MC_ERR_TIMEOUT, MC_ERR_CLOSED; MC_ERR_PROTOCOL when there were several or no room for it. */
MC_MUST_USE enum mc_status mc_local_recv_stream(int fd, void *buffer, size_t len,
                                                uint64_t deadline_ns, int *passed_fd);
/* What of `len` bytes has come already: *n of them, 0 = none yet. A descriptor that came with them
 * goes to *passed_fd, which is -1 before the first. MC_ERR_CLOSED; MC_ERR_PROTOCOL when there were
 * several: the caller closes the one it has. */
MC_MUST_USE enum mc_status mc_local_recv_some(int fd, void *buffer, size_t len, size_t *n,
                                              int *passed_fd);
/* Whose process is at the other end, as this user namespace sees it. */
MC_MUST_USE enum mc_status mc_local_peer_uid(int fd, uint32_t *uid);

/* The process that connected (or listened, seen from the other end). The pidfd is the process
 * itself: it stays so when the pid is given to another. MC_NOT_SUPPORTED when the kernel cannot
 * tell (another pid namespace). */
struct mc_process {
    int32_t pid;
    uint32_t uid;
    int pidfd; /* the caller closes it */
};
MC_MUST_USE enum mc_status mc_local_peer(int fd, struct mc_process *out);
/* False from the moment that the process has ended. One system call. */
bool mc_process_alive(int pidfd);

/* ---- streams: what a connection speaks through ---- */

/* A byte stream over a connected socket, plain or TLS (io/tls.h). Non-blocking: *n is what moved,
 * MC_OK with *n == 0 means "wait for the fd"; MC_ERR_CLOSED at the end of input. The first byte
 * that a write did not take is the first of the next write. A short read has emptied the socket, a
 * short write has filled it. The stream owns the fd and must not move in memory. */
struct mc_stream;
struct mc_stream_ops {
    enum mc_status (*readv)(struct mc_stream *s, const struct iovec *iov, int count, size_t *n);
    enum mc_status (*writev)(struct mc_stream *s, const struct iovec *iov, int count, size_t *n);
    void (*close)(struct mc_stream *s);
};
struct mc_spin {       /* io/spin.c */
    uint64_t limit_ns; /* 0 = never */
    uint64_t owed_ns;
};
struct mc_stream {
    const struct mc_stream_ops *ops;
    int fd;
    struct mc_spin spin; /* the reader's */
    /* Of a TLS stream; a plain one never sets them. */
    _Atomic uint32_t wants; /* EPOLLIN or EPOLLOUT: it waits for that, whatever it was asked */
    _Atomic bool pending;   /* it holds input that did not fit: no event will come for that */
    void *session;
};
static inline bool mc_stream_wants_out(const struct mc_stream *s) {
    return atomic_load_explicit(&s->wants, memory_order_relaxed) == EPOLLOUT;
}
static inline bool mc_stream_pending(const struct mc_stream *s) {
    return atomic_load_explicit(&s->pending, memory_order_relaxed);
}
void mc_stream_plain(struct mc_stream *s, int fd);
bool mc_stream_is_plain(const struct mc_stream *s);
/* mc_sleep_in_reads for a plain stream whose reader waits for answers: it looks for them for up to
 * MC_SPIN_US microseconds (50; 0 = never) before it sleeps, as long as that pays. */
void mc_stream_sleep_in_reads(struct mc_stream *s);
/* Of such a stream: one read that sleeps at most MC_READ_SLEEP_NS; MC_OK with *n == 0 = nothing
 * came. */
MC_MUST_USE enum mc_status mc_stream_recv_once(struct mc_stream *s, const struct iovec *iov,
                                               int iov_count, size_t *n);
/* mc_send_all, mc_recv_some and mc_recv_all through a stream. */
MC_MUST_USE enum mc_status mc_stream_send_all(struct mc_stream *s, const struct iovec *iov,
                                              int iov_count, uint64_t deadline_ns);
MC_MUST_USE enum mc_status mc_stream_recv_some(struct mc_stream *s, const struct iovec *iov,
                                               int iov_count, uint64_t deadline_ns, size_t *n);
MC_MUST_USE enum mc_status mc_stream_recv_all(struct mc_stream *s, void *buffer, size_t len,
                                              uint64_t deadline_ns);

/* ---- reactor ---- */

/* One thread's event loop. Everything registered with a reactor is called on its thread. */
struct mc_reactor;

struct mc_reactor_fd { /* embed; recover with mc_container_of */
    int fd;
    uint32_t events; /* EPOLLIN | EPOLLOUT asked for now */
    void (*on_ready)(struct mc_reactor_fd *self, uint32_t events);
};
struct mc_timer {         /* embed */
    uint64_t deadline_ns; /* mc_clock_system */
    size_t heap_index;    /* reactor's; SIZE_MAX when idle */
    void (*on_timer)(struct mc_timer *self);
};
struct mc_task { /* embed; one queueing at a time */
    struct mc_task *next;
    void (*run)(struct mc_task *self);
};

/* Starts its thread. */
MC_MUST_USE enum mc_status mc_reactor_create(const char *thread_name, struct mc_reactor **out);
/* Stops and joins; queued tasks, and those that they queue, run first; nobody may post any more;
 * not from its own thread. Timers and descriptors that are still registered are forgotten, not
 * called. */
void mc_reactor_destroy(struct mc_reactor *r);
/* Gives the core away between two turns after so long without sleep; 0 = never, as it begins. A
 * busy reactor stands in the way of others that share its core until the kernel's tick takes it
 * off, some milliseconds; with several of them, somebody's short request waits for all their turns.
 * One that moves bulk data would only lose the core in the middle of a transfer. On its own thread.
 */
void mc_reactor_yield_every(struct mc_reactor *r, uint64_t ns);
bool mc_reactor_on_thread(const struct mc_reactor *r);

/* On the reactor's thread only: */
MC_MUST_USE enum mc_status mc_reactor_add(struct mc_reactor *r, struct mc_reactor_fd *f);
void mc_reactor_modify(struct mc_reactor *r, struct mc_reactor_fd *f, uint32_t events);
/* From any thread, while the caller makes sure that f stays added: changes what is waited for, even
 * to the same events, so that an edge-triggered condition that already holds is reported (again).
 * For descriptors whose reading changes hands between the reactor and other threads; those are not
 * for mc_reactor_modify. */
void mc_reactor_rearm(struct mc_reactor *r, struct mc_reactor_fd *f, uint32_t events);
/* Does not close; no call-back afterwards. */
void mc_reactor_remove(struct mc_reactor *r, struct mc_reactor_fd *f);
void mc_timer_init(struct mc_timer *t, void (*on_timer)(struct mc_timer *));
/* Restarts when running; MC_NO_DEADLINE stops it. Never early, at most about 1 ms late on an idle
 * reactor. */
void mc_timer_start(struct mc_reactor *r, struct mc_timer *t, uint64_t deadline_ns);
void mc_timer_stop(struct mc_reactor *r, struct mc_timer *t);

/* From any thread: run the task on the reactor's thread. Queue is unbounded but every task is
 * embedded in an object that its owner bounds. */
void mc_reactor_post(struct mc_reactor *r, struct mc_task *task);
/* Runs fn(arg) on the reactor's thread and waits for it (runs it at once when already there). Two
 * reactors that call each other at the same time wait for ever. */
void mc_reactor_call(struct mc_reactor *r, void (*fn)(void *), void *arg);

/* ---- accepting ---- */

struct mc_acceptor;
/* The callee owns fd. On the reactor's thread. */
typedef void (*mc_accepted_fn)(struct mc_acceptor *self, int fd, const struct mc_addr *peer);
/* A listening socket on a reactor. When descriptors have run out it rests for 100 ms; who waits is
 * accepted then. */
struct mc_acceptor { /* embed; the fields are its own */
    struct mc_reactor *reactor;
    struct mc_reactor_fd listener;
    struct mc_timer rest;
    mc_accepted_fn accepted;
};
/* From any thread. listen_fd (of mc_listen, mc_listen_range or mc_local_listen) is the acceptor's
 * from now on; on an error it is closed. */
MC_MUST_USE enum mc_status mc_acceptor_start(struct mc_acceptor *a, struct mc_reactor *r,
                                             int listen_fd, mc_accepted_fn accepted);
/* From any thread. Closes the socket; no call-back afterwards. */
void mc_acceptor_stop(struct mc_acceptor *a);

#endif
