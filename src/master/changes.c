/*
 * What disks may not bring back: which keys were removed, replaced or put anew, and since when.
 *
 * A disk that comes (again) tells what it holds, each object with the version that the master had
 * given it, and since when it has been told of everything ("current", which SyncDisk brings and the
 * node keeps). An object that the index does not have is taken from it only when that proves it: no
 * change of the key is younger than its version, or than what the disk was told. What cannot be
 * proved is not taken, and goes from the disk: a cache may forget, and never has an older value.
 *
 * Changes are noted in tables of one word for each of NOTE_SLOTS groups of keys: the version of the
 * last change in the group. So noting is one atomic maximum, nothing is ever forgotten, and what
 * other keys of the group did refuses an object at worst.
 *
 * Removals, upserts and disk replicas that end are noted always. That a key was put anew need be
 * known only of disks that are away, and puts are many: they are noted from the moment that a disk
 * goes (or the master starts) for AWAY_MS. The end of that is `blind`: a disk that was told of
 * something later was there at that time, and its going began the notes anew; what another has is
 * refused.
 *
 * The tables, and the counter of versions, lie in a file that outlives the process (notes_path): in
 * shared memory, or on a disk to outlive the machine's orderly restart, too. A master that finds it
 * goes on where the last one was, which may have been killed at any instruction: a change is noted
 * before anybody is told that it has taken place. One that does not find it, or not in the state in
 * which this machine left it, begins a line of versions of its own, and no disk can prove anything
 * to it. What upstream's nodes have written has no version, and follows upstream's rule: it comes
 * back unless this line of masters has removed or upserted it. offload_adopt_unproven extends that
 * rule to what another line's masters had written.
 */
#include "master/core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define NOTE_SLOTS (1u << 21)
#define AWAY_MS    (30ull * 60 * 1000)
#define HEAD_BYTES 4096u

struct notes { /* as it lies in the file, in this machine's order */
    char magic[8];
    char boot_id[40]; /* of the machine's start that wrote it */
    uint64_t sum;     /* of all that follows, once its master has ended; 0 = it has not */
    uint64_t hash_seed, first_version;
    _Atomic uint64_t next_version;
    _Atomic uint64_t floor; /* everything older was removed; 0 = nothing was */
    _Atomic uint64_t blind; /* when puts were last noted no longer */
};
_Static_assert(sizeof(struct notes) <= HEAD_BYTES, "the tables follow");

static const char MAGIC[8] = "MCNOTES2";

struct mc_changes {
    struct notes *notes;
    _Atomic uint64_t *removed, *put; /* NULL without disks */
    size_t bytes;
    int fd;                              /* locked; -1 = only in memory */
    _Atomic uint64_t note_puts_until_ms; /* 0 = they are not noted */
};

/* ---- the file ---- */

static void read_boot_id(char out[40]) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, 36) : 0;
    memset(out + (n > 0 ? n : 0), 0, 40 - (size_t)(n > 0 ? n : 0));
    if (fd >= 0) {
        close(fd);
    }
}

static void *map(int fd, size_t bytes) {
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

static uint64_t sum_of(const struct notes *notes, size_t bytes) {
    size_t head = offsetof(struct notes, hash_seed);
    return mc_hash64((const char *)notes + head, bytes - head, 0) | 1;
}

/* Without a sum the file is this machine's memory, and as good; with one it may have lain on a disk
 * that flips bits, and a version that is taken for a lower one would let old values return. */
static bool trusted(int fd, size_t bytes, const char boot_id[40]) {
    struct notes *notes = map(fd, bytes);
    if (notes == NULL) {
        return false;
    }
    bool same = boot_id[0] != '\0' && memcmp(notes->boot_id, boot_id, 40) == 0;
    bool good = memcmp(notes->magic, MAGIC, sizeof(MAGIC)) == 0 &&
                (notes->sum != 0 ? notes->sum == sum_of(notes, bytes) : same);
    munmap(notes, bytes);
    return good;
}

/* Ours alone, and with all its bytes: a full file system is found here and not at a write. */
static int open_file(const char *path, size_t bytes, const char boot_id[40], bool *fresh) {
    struct stat info;
    const char *step = "open";
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        goto fail;
    }
    step = "lock";
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        goto fail_open;
    }
    step = "stat";
    if (fstat(fd, &info) != 0) {
        goto fail_open;
    }
    step = "trust another user's";
    if (info.st_uid != geteuid()) {
        errno = EPERM;
        goto fail_open;
    }
    *fresh = (size_t)info.st_size != bytes || !trusted(fd, bytes, boot_id);
    step = "allocate";
    if (*fresh && (ftruncate(fd, 0) != 0 || (errno = posix_fallocate(fd, 0, (off_t)bytes)) != 0)) {
        goto fail_open;
    }
    return fd;
fail_open:
    close(fd);
fail:
    mc_warn("the master's notes are only in memory: when it starts again nothing comes back from "
            "disks: path=%s step=%s errno=%d reason=\"%s\"",
            path, step, errno, strerror(errno));
    return -1;
}

static void begin_line(struct mc_changes *c, struct mc_rng *rng) {
    struct notes *notes = c->notes;
    memcpy(notes->magic, MAGIC, sizeof(MAGIC));
    notes->hash_seed = mc_rng_next(rng);
    notes->first_version = mc_rng_next(rng) >> 2 | 1; /* no other line's */
    atomic_init(&notes->next_version, notes->first_version);
}

struct mc_changes *mc_changes_create(const struct mc_master_config *config, struct mc_rng *rng,
                                     uint64_t now_ms) {
    struct mc_changes *c = mc_zalloc(sizeof(*c));
    const char *path = config->offload_notes_path;
    bool fresh = true;
    char boot_id[40];
    read_boot_id(boot_id);
    size_t table = config->enable_offload ? NOTE_SLOTS * sizeof(uint64_t) : 0;
    c->bytes = HEAD_BYTES + 2 * table;
    c->fd = table > 0 && path && path[0] ? open_file(path, c->bytes, boot_id, &fresh) : -1;
    c->notes = map(c->fd, c->bytes);
    MC_ASSERT(c->notes != NULL);
    if (fresh) {
        begin_line(c, rng);
    } else {
        mc_info("the master goes on with the notes of the last one: path=%s", path);
    }
    memcpy(c->notes->boot_id, boot_id, sizeof(boot_id));
    c->notes->sum = 0;
    if (c->fd >= 0 && msync(c->notes, HEAD_BYTES, MS_SYNC) != 0) {
        mc_warn("the master's notes cannot be written: path=%s errno=%d", path, errno);
    }
    c->removed = table ? (void *)((char *)c->notes + HEAD_BYTES) : NULL;
    c->put = table ? (void *)((char *)c->removed + table) : NULL;
    atomic_init(&c->note_puts_until_ms, now_ms + AWAY_MS);
    return c;
}

void mc_changes_end(struct mc_changes *c) {
    c->removed = c->put = NULL;
}

void mc_changes_destroy(struct mc_changes *c) {
    if (c->fd >= 0 && msync(c->notes, c->bytes, MS_SYNC) == 0) {
        c->notes->sum = sum_of(c->notes, c->bytes);
        (void)msync(c->notes, HEAD_BYTES, MS_SYNC);
    }
    munmap(c->notes, c->bytes);
    if (c->fd >= 0) {
        close(c->fd);
    }
    free(c);
}

_Atomic uint64_t *mc_changes_versions(struct mc_changes *c) {
    return &c->notes->next_version;
}

uint64_t mc_changes_hash_seed(const struct mc_changes *c) {
    return c->notes->hash_seed;
}

/* ---- notes ---- */

static void raise(_Atomic uint64_t *word, uint64_t version) {
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    while (old < version && !atomic_compare_exchange_weak_explicit(
                                word, &old, version, memory_order_seq_cst, memory_order_relaxed)) {
    }
}

static _Atomic uint64_t *slot(_Atomic uint64_t *table, uint64_t hash) {
    return &table[hash >> 20 & (NOTE_SLOTS - 1)]; /* other bits than the shards take */
}

static uint64_t hash_of_tenant(const struct mc_master *m, struct mc_str tenant) {
    return mc_hash64(tenant.ptr, tenant.len, ~m->hash_seed);
}

void mc_changed(struct mc_master *m, uint64_t hash) {
    if (m->changes->removed) {
        raise(slot(m->changes->removed, hash), mc_version_next(m));
    }
}

void mc_changed_all(struct mc_master *m, const struct mc_str *tenant) {
    struct mc_changes *c = m->changes;
    if (tenant) {
        mc_changed(m, hash_of_tenant(m, *tenant));
    } else {
        raise(&c->notes->floor, mc_version_next(m));
    }
}

void mc_changed_by_put(struct mc_call *call, uint64_t hash, uint64_t version) {
    struct mc_changes *c = call->m->changes;
    /* relaxed: who goes at this very moment has nothing older than this put */
    if (c->put && atomic_load_explicit(&c->note_puts_until_ms, memory_order_relaxed) != 0) {
        raise(slot(c->put, hash), version);
    }
}

void mc_changes_disk_away(struct mc_call *call) {
    atomic_store_explicit(&call->m->changes->note_puts_until_ms, call->now_ms + AWAY_MS,
                          memory_order_relaxed);
}

/* Who is away by now, and was told of nothing since, cannot prove anything any more. */
void mc_changes_tick(struct mc_call *call) {
    struct mc_changes *c = call->m->changes;
    uint64_t until = atomic_load_explicit(&c->note_puts_until_ms, memory_order_relaxed);
    if (until != 0 && call->now_ms >= until) {
        raise(&c->notes->blind, mc_version_now(call->m));
        /* fails when a disk goes at this very moment, and harms nobody then */
        atomic_compare_exchange_strong_explicit(&c->note_puts_until_ms, &until, 0,
                                                memory_order_seq_cst, memory_order_relaxed);
    }
}

/* ---- the question ---- */

struct proof { /* what a disk shows for an object; 0 = nothing of this line */
    uint64_t version, current;
};

static bool outlasts(const struct proof *p, _Atomic uint64_t *change) {
    uint64_t at = atomic_load_explicit(change, memory_order_seq_cst);
    return at == 0 || at <= p->version || at < p->current;
}

bool mc_may_return(struct mc_master *m, const struct mc_key *key, uint64_t version,
                   uint64_t current) {
    struct mc_changes *c = m->changes;
    uint64_t first = c->notes->first_version, next = mc_version_now(m);
    struct proof p = {version >= first && version < next ? version : 0,
                      current >= first && current <= next ? current : 0};
    if (m->config.break_mode == MC_BREAK_DISK_RETURNS) {
        return true;
    }
    if (!outlasts(&p, slot(c->removed, key->hash)) ||
        !outlasts(&p, slot(c->removed, hash_of_tenant(m, key->tenant))) ||
        !outlasts(&p, &c->notes->floor)) {
        return false;
    }
    if (p.version == 0 && p.current == 0) { /* upstream's, or of another line of masters */
        return version == 0 || m->config.offload_adopt_unproven;
    }
    return outlasts(&p, slot(c->put, key->hash)) && outlasts(&p, &c->notes->blind);
}
