/*
 * `mooncake doctor`: looks at what this machine grants a process of Mooncake and says what to
 * change, before it fails in service. Each check reads one thing of the kernel, compares, and
 * prints one line; nothing is changed.
 */
#include "base/log.h"
#include "cmd/cmd.h"
#include "io/io.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

struct doctor_options {
    int64_t port, admin_port, metadata_port;
};

#define OPT(...) MC_OPTION(struct doctor_options, __VA_ARGS__)

static const struct mc_option table[] = {
    OPT(I64, port, .default_value = "50051", .min = 1, .max = 65535,
        .doc = "RPC port that a master would use"),
    OPT(I64, admin_port, .default_value = "9003", .min = 1, .max = 65535, .doc = "its admin port"),
    OPT(I64, metadata_port, .default_value = "8080", .min = 1, .max = 65535,
        .doc = "its metadata port"),
};

const struct mc_option_set mc_doctor_options = {
    .program = "mooncake doctor",
    .synopsis = "[options]",
    .about = "Checks limits, ports, network cards, huge pages and what the kernel permits between "
             "processes, and says what "
             "to do. Exit status 1 when something would keep Mooncake from working.",
    .options = table,
    .count = MC_ARRAY_LEN(table),
};

enum verdict { GOOD, NOTE, BAD };

struct doctor {
    const struct doctor_options *options;
    unsigned notes, bad;
};

static void say(struct doctor *d, enum verdict verdict, const char *advice, const char *format, ...)
    MC_PRINTF(4, 5);
static void say(struct doctor *d, enum verdict verdict, const char *advice, const char *format,
                ...) {
    static const char *const marks[] = {"ok  ", "note", "BAD "};
    va_list args;
    va_start(args, format);
    printf("%s  ", marks[verdict]);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    if (advice != NULL && verdict != GOOD) {
        printf("      -> %s\n", advice);
    }
    d->notes += verdict == NOTE;
    d->bad += verdict == BAD;
}

/* The first number of a file of /proc or /sys; false when it cannot be read. */
static bool read_number(const char *path, long long *out) {
    FILE *file = fopen(path, "re");
    bool good = file != NULL && fscanf(file, "%lld", out) == 1;
    if (file != NULL) {
        fclose(file);
    }
    return good;
}

/* ---- checks ---- */

static void check_kernel(struct doctor *d) {
    struct utsname name;
    if (uname(&name) == 0) {
        int major = atoi(name.release);
        say(d, major >= 5 ? GOOD : NOTE, "5.10 or later is what Mooncake is tested on",
            "kernel %s, %ld cores", name.release, sysconf(_SC_NPROCESSORS_ONLN));
    }
}

static void check_files(struct doctor *d) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        say(d,
            limit.rlim_cur >= 16384  ? GOOD
            : limit.rlim_cur >= 1024 ? NOTE
                                     : BAD,
            "each peer takes several connections: ulimit -n 65536, or LimitNOFILE=65536 in the "
            "systemd unit",
            "open files: %llu of at most %llu", (unsigned long long)limit.rlim_cur,
            (unsigned long long)limit.rlim_max);
    }
}

static void check_memlock(struct doctor *d) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
        return;
    }
    if (limit.rlim_cur == RLIM_INFINITY) {
        say(d, GOOD, NULL, "locked memory: unlimited");
        return;
    }
    say(d, limit.rlim_cur >= (1u << 30) ? GOOD : NOTE,
        "only RDMA needs it (and io_uring before 5.12): ulimit -l unlimited, or "
        "LimitMEMLOCK=infinity",
        "locked memory: %llu KiB", (unsigned long long)limit.rlim_cur / 1024);
}

static void check_memory(struct doctor *d) {
    FILE *file = fopen("/proc/meminfo", "re");
    unsigned long long total = 0, available = 0, huge_total = 0, huge_free = 0, value;
    char line[128];
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        total = sscanf(line, "MemTotal: %llu", &value) == 1 ? value : total;
        available = sscanf(line, "MemAvailable: %llu", &value) == 1 ? value : available;
        huge_total = sscanf(line, "HugePages_Total: %llu", &value) == 1 ? value : huge_total;
        huge_free = sscanf(line, "HugePages_Free: %llu", &value) == 1 ? value : huge_free;
    }
    if (file != NULL) {
        fclose(file);
    }
    say(d, available > (1u << 20) ? GOOD : NOTE, "a node lends memory that should be free",
        "memory: %.1f of %.1f GiB free", (double)available / (1 << 20), (double)total / (1 << 20));
    say(d, GOOD, NULL, "huge pages: %llu of %llu free%s", huge_free, huge_total,
        huge_total == 0
            ? " (optional: sysctl vm.nr_hugepages=N, and MC_STORE_USE_HUGEPAGE=1 for nodes)"
            : "");
}

static void check_shared_memory(struct doctor *d) {
    int fd = memfd_create("mooncake-doctor", MFD_CLOEXEC);
    bool good = fd >= 0 && ftruncate(fd, 1 << 20) == 0;
    say(d, good ? GOOD : NOTE, "processes of one host then use TCP instead of shared memory",
        "shared memory (memfd): %s", good ? "works" : strerror(errno));
    if (fd >= 0) {
        close(fd);
    }
}

static void check_ptrace(struct doctor *d) {
    long long scope = 0;
    if (!read_number("/proc/sys/kernel/yama/ptrace_scope", &scope)) {
        say(d, GOOD, NULL, "reading another process's memory: not restricted by Yama");
        return;
    }
    say(d, scope == 0 || geteuid() == 0 ? GOOD : NOTE,
        "memory that Mooncake did not allocate is then moved by TCP within a host: sysctl "
        "kernel.yama.ptrace_scope=0",
        "kernel.yama.ptrace_scope is %lld", scope);
}

static void check_io_uring(struct doctor *d) {
    long long disabled = 0;
    bool off = read_number("/proc/sys/kernel/io_uring_disabled", &disabled) && disabled != 0;
    say(d, off ? NOTE : GOOD,
        "files are then read and written by threads: sysctl kernel.io_uring_disabled=0",
        "io_uring: %s", off ? "disabled by the kernel's configuration" : "not disabled");
}

static void check_port(struct doctor *d, const char *what, const char *option, uint16_t port) {
    int fd = -1;
    uint16_t bound = 0;
    char advice[128];
    enum mc_status status = mc_listen("", port, 1, &fd, &bound);
    if (status == MC_OK) {
        close(fd);
        say(d, GOOD, NULL, "port %u (%s) is free", port, what);
        return;
    }
    snprintf(advice, sizeof(advice),
             "end what listens there (ss -ltnp 'sport = :%u'), or choose another with %s", port,
             option);
    say(d, NOTE, advice, "port %u (%s) cannot be used: %s", port, what, mc_status_text(status));
}

static void check_ephemeral_ports(struct doctor *d) {
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    int low = 0, high = 0;
    bool known = file != NULL && fscanf(file, "%d %d", &low, &high) == 2;
    if (file != NULL) {
        fclose(file);
    }
    if (!known) {
        return;
    }
    bool overlap = low <= 17000 && high >= 15000;
    say(d, high - low >= 10000 && !overlap ? GOOD : NOTE,
        overlap ? "engines listen on 15000-17000: sysctl net.ipv4.ip_local_port_range='32768 "
                  "60999', or set "
                  "MC_MIN_RPC_PORT and MC_MAX_RPC_PORT"
                : "few ports for outgoing connections: sysctl net.ipv4.ip_local_port_range='32768 "
                  "60999'",
        "ports of outgoing connections: %d-%d", low, high);
}

static void check_backlog(struct doctor *d) {
    long long backlog = 0;
    if (read_number("/proc/sys/net/core/somaxconn", &backlog)) {
        say(d, backlog >= 1024 ? GOOD : NOTE,
            "many clients that start at once wait: sysctl net.core.somaxconn=4096",
            "connections waiting to be accepted: at most %lld", backlog);
    }
}

static void check_interfaces(struct doctor *d) {
    struct ifaddrs *list = NULL;
    char chosen[64];
    unsigned usable = 0;
    mc_local_ip(chosen, sizeof(chosen));
    if (getifaddrs(&list) != 0) {
        return;
    }
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        bool up = (i->ifa_flags & IFF_UP) != 0 && (i->ifa_flags & IFF_LOOPBACK) == 0;
        if (!up || i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET) {
            continue;
        }
        char text[INET_ADDRSTRLEN], path[128];
        long long speed = 0, mtu = 0;
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)i->ifa_addr;
        inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text));
        snprintf(path, sizeof(path), "/sys/class/net/%s/mtu", i->ifa_name);
        read_number(path, &mtu);
        snprintf(path, sizeof(path), "/sys/class/net/%s/speed", i->ifa_name);
        if (read_number(path, &speed) && speed > 0) {
            say(d, GOOD, NULL, "network card %s: %s, mtu %lld, %lld Mbit/s", i->ifa_name, text, mtu,
                speed);
        } else {
            say(d, GOOD, NULL, "network card %s: %s, mtu %lld", i->ifa_name, text, mtu);
        }
        usable++;
    }
    freeifaddrs(list);
    say(d, usable > 0 ? GOOD : NOTE,
        "only processes of this host can reach it; set MC_TCP_BIND_ADDRESS when that is wrong",
        "peers are told to reach this machine at %s", chosen);
}

static void check_rdma(struct doctor *d) {
    unsigned devices = 0;
    DIR *dir = opendir("/sys/class/infiniband");
    for (const struct dirent *e = dir ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        devices += e->d_name[0] != '.';
    }
    if (dir != NULL) {
        closedir(dir);
    }
    say(d, GOOD, NULL, "RDMA devices: %u%s", devices,
        devices == 0 ? " (TCP and shared memory are used)" : "");
}

int mc_cmd_doctor(int argc, char **argv) {
    struct doctor_options options;
    struct mc_option_result result;
    int exit_status = 0;
    if (!mc_cmd_parse_no_words(&mc_doctor_options, argc, argv, &options, &result, &exit_status)) {
        return exit_status;
    }
    struct doctor d = {.options = &options};
    MC_ASSERT(mc_log_set_level("OFF") == MC_OK); /* what a check finds is said once, by its line */
    check_kernel(&d);
    check_files(&d);
    check_memlock(&d);
    check_memory(&d);
    check_shared_memory(&d);
    check_ptrace(&d);
    check_io_uring(&d);
    check_port(&d, "master", "--rpc_port", (uint16_t)options.port);
    check_port(&d, "admin and metrics", "--metrics_port", (uint16_t)options.admin_port);
    check_port(&d, "metadata server", "--http_metadata_server_port",
               (uint16_t)options.metadata_port);
    check_ephemeral_ports(&d);
    check_backlog(&d);
    check_interfaces(&d);
    check_rdma(&d);
    printf("\n%s\n", d.bad > 0     ? "Something here keeps Mooncake from working."
                     : d.notes > 0 ? "Mooncake works here; the notes say what would make it better."
                                   : "Nothing to change.");
    mc_options_free(&result);
    return d.bad > 0 ? MC_EXIT_FAILED : 0;
}
