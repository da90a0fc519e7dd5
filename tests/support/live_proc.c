/*
 * What /proc says about a program of live.h.
 *
 * A test that compares "before" with "after" compares what the program decides alone. Left out is
 * what comes by chance: the threads of pools, which grow when jobs happen to overlap; the thread
 * that gives memory its pages, which ends by itself; and, where the caller names their port, the
 * connections of a pool, which opens one more when two threads happen to ask in the same moment.
 */
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "support/live.h"

#define SETTLE_MS   60000
#define LISTEN      0x0a /* include/net/tcp_states.h of the kernel */
#define LINES_SHOWN 300

/* ---- memory ---- */

static uint64_t status_field(const struct live *p, const char *name) {
    char path[64], line[256];
    unsigned long long value = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)p->pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) {
            assert_int_equal(sscanf(line + strlen(name), "%llu", &value), 1);
        }
    }
    fclose(f);
    return value;
}

uint64_t live_rss_bytes(const struct live *p) {
    return status_field(p, "VmRSS:") * 1024;
}
uint64_t live_anonymous_bytes(const struct live *p) {
    return status_field(p, "RssAnon:") * 1024;
}

size_t live_guest_mappings(const struct live *p) {
    char path[64], line[512];
    size_t count = 0;
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)p->pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        count += strstr(line, "mooncake_shm") != NULL;
    }
    fclose(f);
    return count;
}

void live_wait_guest_mappings(const struct live *p, size_t count) {
    for (int i = 0; i < 3000 && live_guest_mappings(p) != count; i++) {
        usleep(10000);
    }
    assert_int_equal(live_guest_mappings(p), count);
}

/* ---- threads ---- */

/* Calls `see` with the name of each thread. */
static void each_thread(const struct live *p, void (*see)(const char *name, void *arg), void *arg) {
    char path[600], name[32];
    snprintf(path, sizeof(path), "/proc/%d/task", (int)p->pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", (int)p->pid, e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "re") : NULL;
        if (f != NULL) { /* else it has just ended */
            if (fgets(name, sizeof(name), f) != NULL) {
                name[strcspn(name, "\n")] = '\0';
                see(name, arg);
            }
            fclose(f);
        }
    }
    closedir(d);
}

static void count_lasting(const char *name, void *arg) {
    *(unsigned *)arg += strcmp(name, "mc-te-fill") != 0 && strcmp(name, "mc-te-job") != 0;
}
static void count_filling(const char *name, void *arg) {
    *(unsigned *)arg += strcmp(name, "mc-te-fill") == 0;
}
static void show_thread(const char *name, void *arg) {
    print_error("    thread %s\n", name);
}

unsigned live_threads(const struct live *p) {
    unsigned count = 0;
    each_thread(p, count_lasting, &count);
    return count;
}

void live_wait_filled(const struct live *p) {
    for (unsigned waited = 0, filling = 1; filling > 0; waited += 5) {
        filling = 0;
        each_thread(p, count_filling, &filling);
        if (waited > SETTLE_MS) {
            fail_msg("memory still has no pages after %d ms", SETTLE_MS);
        }
        usleep(5000);
    }
}

void live_assert_threads(const struct live *p, unsigned expected) {
    unsigned count = live_threads(p);
    if (count != expected) {
        each_thread(p, show_thread, NULL);
        fail_msg("%u threads that last, and %u before; those above are there", count, expected);
    }
}

/* ---- descriptors ---- */

struct tcp_socket {
    unsigned near_port, far_port, state;
    unsigned long inode;
};

/* The TCP sockets of this machine (its network name space). */
static struct tcp_socket *tcp_sockets(size_t *count) {
    static const char *const tables[] = {"/proc/self/net/tcp", "/proc/self/net/tcp6"};
    struct tcp_socket *all = NULL, one;
    size_t capacity = 0;
    char line[512];
    *count = 0;
    for (size_t i = 0; i < MC_ARRAY_LEN(tables); i++) {
        FILE *f = fopen(tables[i], "re");
        while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
            if (sscanf(line, "%*u: %*[0-9A-F]:%x %*[0-9A-F]:%x %x %*s %*s %*s %*u %*u %lu",
                       &one.near_port, &one.far_port, &one.state, &one.inode) == 4) {
                if (*count == capacity) {
                    capacity = capacity ? 2 * capacity : 256;
                    all = realloc(all, capacity * sizeof(*all));
                    assert_non_null(all);
                }
                all[(*count)++] = one;
            }
        }
        if (f != NULL) {
            fclose(f);
        }
    }
    return all;
}

/* One descriptor; `tcp` is NULL unless it is a TCP socket. */
struct descriptor {
    const char *number, *target;
    const struct tcp_socket *tcp;
};

static const struct tcp_socket *find_socket(const struct tcp_socket *all, size_t count,
                                            const char *target) {
    unsigned long inode;
    if (sscanf(target, "socket:[%lu]", &inode) == 1) {
        for (size_t i = 0; i < count; i++) {
            if (all[i].inode == inode) {
                return &all[i];
            }
        }
    }
    return NULL;
}

static void each_descriptor(const struct live *p,
                            void (*see)(const struct descriptor *descriptor, void *arg),
                            void *arg) {
    char path[600], target[256];
    size_t count;
    struct tcp_socket *sockets = tcp_sockets(&count);
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)p->pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)p->pid, e->d_name);
        ssize_t n = e->d_name[0] != '.' ? readlink(path, target, sizeof(target) - 1) : -1;
        if (n > 0) { /* else it has just been closed */
            target[n] = '\0';
            see(&(struct descriptor){e->d_name, target, find_socket(sockets, count, target)}, arg);
        }
    }
    closedir(d);
    free(sockets);
}

struct file_count {
    uint16_t port;
    unsigned of_port, others;
};
static void count_file(const struct descriptor *d, void *arg) {
    struct file_count *c = arg;
    bool of_port = d->tcp != NULL && d->tcp->state != LISTEN && c->port != 0 &&
                   (d->tcp->near_port == c->port || d->tcp->far_port == c->port);
    c->of_port += of_port;
    c->others += !of_port;
}
static void show_file(const struct descriptor *d, void *arg) {
    unsigned *shown = arg;
    if ((*shown)++ >= LINES_SHOWN) {
        return;
    }
    if (d->tcp != NULL) {
        print_error("    %s -> tcp, port %u to %u, state %u\n", d->number, d->tcp->near_port,
                    d->tcp->far_port, d->tcp->state);
    } else {
        print_error("    %s -> %s\n", d->number, d->target);
    }
}

unsigned live_open_files(const struct live *p, uint16_t pool_port) {
    struct file_count c = {.port = pool_port};
    each_descriptor(p, count_file, &c);
    return c.others;
}
unsigned live_connections(const struct live *p, uint16_t port) {
    struct file_count c = {.port = port};
    each_descriptor(p, count_file, &c);
    return c.of_port;
}

void live_wait_files(const struct live *p, uint16_t pool_port, unsigned most) {
    unsigned shown = 0, count = live_open_files(p, pool_port);
    for (unsigned waited = 0; count > most && waited < SETTLE_MS; waited += 5) {
        usleep(5000);
        count = live_open_files(p, pool_port);
    }
    if (count > most) {
        print_error("the descriptors of process %d:\n", (int)p->pid);
        each_descriptor(p, show_file, &shown);
        fail_msg("%u descriptors are open besides connections of port %u, and %u before", count,
                 pool_port, most);
    }
}

/* ---- time ---- */

uint64_t live_cpu_ms(const struct live *p) {
    char path[64], line[1024];
    unsigned long long user = 0, sys = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)p->pid);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    fclose(f);
    const char *after_name = strrchr(line, ')');
    assert_non_null(after_name);
    assert_int_equal(sscanf(after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu",
                            &user, &sys),
                     2);
    return (user + sys) * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
}
