/*
 * Deleting the files of objects that are gone: the master names them (master/files.c), any client
 * that can use its directory deletes them and says so. Each call takes a step, because the thread
 * has other things to do.
 *
 * A batch without paths is another kind of work, the directories of masters that were: their files
 * are read by nobody, because a master starts empty. They may be many, so that this takes steps of
 * its own; when it stops half-way the master gives it to somebody again. A client whose directory
 * is not the master's (it was started anew with another) deletes nothing.
 */
#include "client/ops_internal.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define STEP_NAMES 1024u /* that are deleted before the thread looks after its other work */
#define DEPTH      8     /* of a master's directory, at most */
#define REFUSED_NS (60 * MC_SEC)

/* ---- directories of masters that were ---- */

/* A link is none: what it points to is not ours. */
static bool is_masters(const char *path, const char *name) {
    struct stat info;
    return strlen(name) == 16 && strspn(name, "0123456789abcdef") == 16 &&
           lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* What is in the directory, and itself; false when `left` names did not do, or something cannot be
 * deleted. */
static bool delete_tree(struct mc_buf *path, unsigned depth, unsigned *left) {
    DIR *directory = opendir(mc_buf_cstr(path));
    if (directory == NULL) {
        return errno == ENOENT;
    }
    size_t len = path->len;
    bool good = true;
    for (struct dirent *entry; good && (entry = readdir(directory)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        mc_buf_printf(path, "/%s", entry->d_name);
        good = *left > 0;
        *left -= good;
        if (good && unlink(mc_buf_cstr(path)) != 0 && errno != ENOENT) {
            good = depth > 0 && (errno == EISDIR || errno == EPERM) &&
                   delete_tree(path, depth - 1, left);
        }
        path->len = len;
    }
    closedir(directory);
    return good && (rmdir(mc_buf_cstr(path)) == 0 || errno == ENOENT);
}

/* A step; true when all are gone. What cannot be deleted keeps none of the others. */
static bool sweep(struct mc_ops *ops, unsigned *left) {
    struct mc_buf path = {0};
    mc_buf_append(&path, ops->fsdir.ptr, ops->fsdir.len);
    DIR *directory = opendir(mc_buf_cstr(&path));
    int error = directory != NULL || errno == ENOENT ? 0 : errno;
    for (struct dirent *entry; directory && *left > 0 && (entry = readdir(directory)) != NULL;) {
        mc_buf_printf(&path, "/%s", entry->d_name);
        if (is_masters(mc_buf_cstr(&path), entry->d_name) &&
            strcmp(mc_buf_cstr(&path), mc_buf_cstr(&ops->tidy.keep)) != 0 &&
            !delete_tree(&path, DEPTH, left) && *left > 0) {
            error = errno;
        }
        path.len = ops->fsdir.len;
    }
    if (error != 0) {
        mc_warn_limited("copies of objects of another master cannot be deleted: directory=%s "
                        "errno=%d reason=\"%s\"",
                        ops->fsdir.ptr, error, strerror(error));
    }
    if (directory != NULL) {
        closedir(directory);
    }
    mc_buf_free(&path);
    return error == 0 && *left > 0;
}

static void sweep_on(struct mc_ops *ops) {
    struct mc_ops_tidy *tidy = &ops->tidy;
    unsigned left = STEP_NAMES;
    if (sweep(ops, &left)) {
        tidy->done = tidy->sweeping;
        tidy->sweeping = 0;
    } else if (left > 0) { /* in vain: the master gives it to somebody else, later */
        tidy->sweeping = 0;
    }
}

/* ---- files of this master ---- */

static void carry_out(struct mc_ops *ops, const struct mw_dead_files *orders) {
    struct mc_ops_tidy *tidy = &ops->tidy;
    const struct mc_str *path = orders->paths.items;
    bool all_gone = true;
    tidy->done = 0;
    if (!mc_str_eq((struct mc_str){tidy->keep.data, tidy->keep.len}, orders->keep)) {
        tidy->sweeping = 0; /* another master's: its files are not to be swept away */
        mc_buf_clear(&tidy->keep);
        mc_buf_append(&tidy->keep, orders->keep.ptr, orders->keep.len);
    }
    if (!mc_ops_file_allowed(ops, orders->keep)) {
        return; /* of a directory that is not the one we joined */
    }
    for (size_t i = 0; i < orders->paths.count; i++) {
        all_gone = mc_ops_file_delete(ops, path[i]) && all_gone;
    }
    if (orders->paths.count > 0) {
        tidy->done = all_gone ? orders->batch : 0; /* else somebody else tries, in a minute */
    } else if (orders->batch != 0) {
        tidy->sweeping = orders->batch;
    }
}

bool mc_ops_tidy_files(struct mc_ops *ops) {
    struct mc_ops_tidy *tidy = &ops->tidy;
    if (ops->fsdir.len == 0 || !mc_ops_master_is_ours(ops) ||
        mc_ops_now(ops) < tidy->refused_until_ns) {
        return false;
    }
    struct mc_ops_call *call = mc_ops_begin(ops);
    struct mw_a_dead_files args = {.client = ops->client, .done = tidy->done};
    struct mw_e_dead_files answer = {0};
    enum mc_status status = mc_ops_rpc(ops, call, MC_RPC_TakeDeadFiles, &args, &answer,
                                       mc_ops_deadline(ops), MC_OPS_IDEMPOTENT);
    if (status == MC_OK) {
        carry_out(ops, &answer.value);
    } else if (status == MC_NOT_SUPPORTED) {
        tidy->refused_until_ns = mc_ops_now(ops) + REFUSED_NS; /* an older master of ours */
    }
    mc_ops_end(ops, call);
    if (status == MC_OK && tidy->sweeping != 0 && tidy->done == 0) {
        sweep_on(ops);
    }
    return status == MC_OK && (tidy->done != 0 || tidy->sweeping != 0);
}
