/*
 * What /sys/class says about network cards: whether a port has a link, how fast it is; and RDMA
 * cards that hwloc does not show because they are software over an interface (soft RoCE, siw),
 * which stand where that interface does.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "topo/private.h"

#define FILE_MAX 128

/* The first line of <sysfs>/<path>, without its end; false when it cannot be read. */
static bool read_line(const char *sysfs, const char *path, char line[FILE_MAX]) {
    char full[512];
    snprintf(full, sizeof(full), "%s/%s", sysfs, path);
    int fd = open(full, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, line, FILE_MAX - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    line[n > 0 ? n : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return n > 0;
}

/* Ports of an RDMA card: "4: ACTIVE", "100 Gb/sec (4X EDR)". */
static void read_ports(struct mc_topo_device *card, const char *sysfs) {
    char path[256], line[FILE_MAX];
    bool known = false, active = false;
    for (unsigned port = 1; port <= 8; port++) {
        double rate = 0;
        snprintf(path, sizeof(path), "class/infiniband/%s/ports/%u/state", card->name, port);
        if (!read_line(sysfs, path, line)) {
            continue;
        }
        known = true;
        if (atoi(line) != 4) {
            continue;
        }
        active = true;
        snprintf(path, sizeof(path), "class/infiniband/%s/ports/%u/rate", card->name, port);
        if (read_line(sysfs, path, line) && sscanf(line, "%lf Gb/sec", &rate) == 1 && rate > 0) {
            card->bandwidth = mc_max_u64(card->bandwidth, (uint64_t)(rate * 1e9 / 8));
        }
    }
    card->up = known ? active : card->up;
}

static void read_interface(struct mc_topo_device *card, const char *sysfs) {
    char path[256], line[FILE_MAX];
    uint64_t mbit;
    snprintf(path, sizeof(path), "class/net/%s/operstate", card->netdev);
    if (read_line(sysfs, path, line)) {
        card->up = strcmp(line, "up") == 0 || strcmp(line, "unknown") == 0;
    }
    snprintf(path, sizeof(path), "class/net/%s/speed", card->netdev);
    if (read_line(sysfs, path, line) && mc_parse_u64(line, 1, 10000000, &mbit) == MC_OK) {
        card->bandwidth = mbit * 1000000 / 8;
    }
}

/* A card of software stands at its interface. */
static enum mc_status add_soft_card(struct mc_topo *topo, const char *sysfs, const char *name) {
    char path[512], line[FILE_MAX];
    struct mc_topo_device *card = topo_device_add(topo);
    if (card == NULL) {
        return MC_ERR_LIMIT;
    }
    card->kind = MC_TOPO_NIC;
    card->rdma = true;
    topo_text(card->name, sizeof(card->name), name);
    snprintf(path, sizeof(path), "class/infiniband/%s/parent", name);
    if (read_line(sysfs, path, line)) {
        topo_text(card->netdev, sizeof(card->netdev), line);
    }
    for (size_t i = 0; i + 1 < topo->device_count && card->netdev[0] != '\0'; i++) {
        const struct mc_topo_device *other = &topo->devices[i];
        if (strcmp(other->netdev, card->netdev) == 0) {
            card->numa_node = other->numa_node;
            card->path_length = other->path_length;
            memcpy(card->path, other->path, sizeof(card->path));
            memcpy(card->pci, other->pci, sizeof(card->pci));
        }
    }
    snprintf(path, sizeof(path), "class/infiniband/%s/device/numa_node", name);
    if (card->numa_node < 0 && read_line(sysfs, path, line)) {
        card->numa_node = atoi(line) >= 0 ? atoi(line) : -1;
    }
    if (card->numa_node < 0 && topo->node_count == 1) {
        card->numa_node = topo->nodes[0].number;
    }
    return MC_OK;
}

static bool is_known(const struct mc_topo *topo, const char *name) {
    for (size_t i = 0; i < topo->device_count; i++) {
        if (strcmp(topo->devices[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static enum mc_status add_soft_cards(struct mc_topo *topo, const char *sysfs) {
    char path[512];
    enum mc_status status = MC_OK;
    snprintf(path, sizeof(path), "%s/class/infiniband", sysfs);
    DIR *dir = opendir(path);
    const struct dirent *e;
    while (dir != NULL && status == MC_OK && (e = readdir(dir)) != NULL) {
        if (e->d_name[0] != '.' && strlen(e->d_name) < MC_TOPO_NAME_MAX &&
            !is_known(topo, e->d_name)) {
            status = add_soft_card(topo, sysfs, e->d_name);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return status;
}

enum mc_status topo_sysfs_read(struct mc_topo *topo, const char *sysfs) {
    MC_TRY(add_soft_cards(topo, sysfs));
    for (size_t i = 0; i < topo->device_count; i++) {
        struct mc_topo_device *card = &topo->devices[i];
        if (card->kind == MC_TOPO_NIC && card->rdma) {
            read_ports(card, sysfs);
        } else if (card->kind == MC_TOPO_NIC) {
            read_interface(card, sysfs);
        }
    }
    return MC_OK;
}
