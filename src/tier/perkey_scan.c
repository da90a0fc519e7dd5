/*
 * What a directory of files per key holds, at the start. See tier/perkey.c.
 *
 * Objects are taken in the order in which their files were written, which is the order of eviction.
 * A file that is shorter or longer than it says is deleted; one whose key has another name is
 * somebody else's and left alone.
 */
#include "tier/perkey.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "io/key_path.h"
#include "tier/keyfile.h"

struct found {
    struct mc_tier_entry *entry;
    struct timespec written;
};

struct listing {
    struct found *all;
    size_t count, cap;
};

static void add(struct listing *list, struct mc_tier_entry *entry, struct timespec written) {
    if (list->count == list->cap) {
        list->cap = list->cap > 0 ? 2 * list->cap : 1024;
        list->all = mc_realloc(list->all, list->cap * sizeof(*list->all));
    }
    list->all[list->count++] = (struct found){entry, written};
}

static int by_time(const void *a, const void *b) {
    const struct timespec *x = &((const struct found *)a)->written;
    const struct timespec *y = &((const struct found *)b)->written;
    if (x->tv_sec != y->tv_sec) {
        return x->tv_sec < y->tv_sec ? -1 : 1;
    }
    return x->tv_nsec < y->tv_nsec ? -1 : x->tv_nsec > y->tv_nsec;
}

/* NULL when the file is not an object of ours; *broken = it is to be deleted. */
static struct mc_tier_entry *look_at(struct perkey_backend *b, const char *path, bool *broken,
                                     struct timespec *written) {
    char head[NAME_MAX + MC_KEYFILE_HEAD_MAX];
    struct mc_tier_entry *entry = NULL;
    struct mc_str key;
    struct stat info;
    uint64_t size;
    *broken = false;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t got = fd >= 0 ? pread(fd, head, sizeof(head), 0) : -1;
    if (got < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        b->haunted = true; /* another start may read it */
        mc_warn("a file of the SSD tier cannot be read: path=%s errno=%d reason=\"%s\"", path,
                errno, strerror(errno));
    } else if (mc_keyfile_decode((struct mc_str){head, (size_t)got}, (uint64_t)info.st_size, &key,
                                 &size) != MC_OK ||
               size > INT64_MAX / 2) {
        *broken = true;
    } else {
        struct mc_buf name = {0};
        mc_key_path(mc_str_from(b->directory.data), key, &name);
        if (strcmp(mc_buf_cstr(&name), path) == 0) {
            entry = mc_tier_entry_make(key);
            entry->size = size;
            entry->disk = (uint64_t)info.st_blocks * 512;
            entry->has_crc = perkey_get_crc(fd, entry);
            *written = info.st_mtim;
        }
        mc_buf_free(&name);
    }
    if (fd >= 0) {
        close(fd);
    }
    return entry;
}

static void scan_directory(struct perkey_backend *b, const char *path, struct listing *list) {
    DIR *directory = opendir(path);
    struct mc_buf name = {0};
    if (directory == NULL) { /* most of the 256 are not there in a small tier */
        b->haunted = b->haunted || errno != ENOENT;
        return;
    }
    for (const struct dirent *at = readdir(directory); at != NULL; at = readdir(directory)) {
        if (strcmp(at->d_name, ".") == 0 || strcmp(at->d_name, "..") == 0) {
            continue;
        }
        bool broken;
        struct timespec written;
        mc_buf_clear(&name);
        mc_buf_printf(&name, "%s/%s", path, at->d_name);
        struct mc_tier_entry *entry = look_at(b, mc_buf_cstr(&name), &broken, &written);
        if (entry != NULL) {
            add(list, entry, written);
        } else if (broken) {
            mc_warn("a file of the SSD tier is deleted: path=%s reason=\"it is not whole\"",
                    name.data);
            b->haunted = b->haunted || unlink(name.data) != 0;
            b->names_behind = true;
        }
    }
    closedir(directory);
    mc_buf_free(&name);
}

/* What puts had in hand when the process died. */
static void empty_scratch(struct perkey_backend *b) {
    DIR *directory = opendir(b->scratch.data);
    struct mc_buf name = {0};
    if (directory == NULL) {
        return;
    }
    for (const struct dirent *at = readdir(directory); at != NULL; at = readdir(directory)) {
        mc_buf_clear(&name);
        mc_buf_printf(&name, "%s/%s", b->scratch.data, at->d_name);
        (void)unlink(mc_buf_cstr(&name)); /* "." and ".." refuse */
    }
    closedir(directory);
    mc_buf_free(&name);
}

enum mc_status perkey_recover(struct perkey_backend *b) {
    struct listing list = {0};
    struct mc_buf path = {0};
    empty_scratch(b);
    for (char first = 'a'; first <= 'p'; first++) {
        for (char second = 'a'; second <= 'p'; second++) {
            mc_buf_clear(&path);
            mc_buf_printf(&path, "%s/%c/%c", b->directory.data, first, second);
            scan_directory(b, mc_buf_cstr(&path), &list);
        }
    }
    if (list.count > 0) {
        qsort(list.all, list.count, sizeof(*list.all), by_time);
    }
    pthread_mutex_lock(&b->face.lock);
    for (size_t i = 0; i < list.count; i++) {
        uint64_t hash = list.all[i].entry->hash;
        perkey_publish_locked(b, list.all[i].entry);
        mc_tier_order_stored(&b->order, &hash, 1);
    }
    pthread_mutex_unlock(&b->face.lock);
    free(list.all);
    mc_buf_free(&path);
    return MC_OK;
}
