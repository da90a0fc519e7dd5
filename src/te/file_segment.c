/*
 * File segments: files of this machine that are read and written like a peer's memory. Two kinds of
 * names open one: "file://<path>" means that file with the length it has, and a name with a '/' in
 * it is looked up in the metadata service as upstream's NVMe-oF segments are. An engine's name is
 * neither, and what an engine answers is never taken for files: a peer cannot make this process
 * write to a path.
 *
 * Addresses in the segment are offsets; several files lie end to end.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/export.h"
#include "base/log.h"
#include "te/internal.h"
#include "wire/file_segment.h"

#define URL "file://"

static bool is_url(const char *name) {
    return strncmp(name, URL, strlen(URL)) == 0;
}

bool mc_file_segment_is_name(const struct mc_engine *engine, const char *name) {
    return is_url(name) || (!mc_meta_is_p2p(engine->meta) && strchr(name, '/') != NULL);
}

/* Of a regular file or a block device; 0 for what has no length. */
static enum mc_status length_of(const char *path, uint64_t *length) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *length = 0;
    if (fd < 0 || fstat(fd, &st) != 0) {
        int error = errno;
        mc_error("a file of a segment cannot be opened path=%s errno=%d reason=\"%s\"", path, error,
                 strerror(error));
        if (fd >= 0) {
            close(fd);
        }
        return error == ENOENT ? MC_FILE_NOT_FOUND : MC_FILE_OPEN_FAIL;
    }
    if (S_ISREG(st.st_mode)) {
        *length = (uint64_t)st.st_size;
    } else if (S_ISBLK(st.st_mode) && ioctl(fd, BLKGETSIZE64, length) != 0) {
        *length = 0;
    }
    bool directory = S_ISDIR(st.st_mode);
    close(fd);
    return directory ? MC_FILE_OPEN_FAIL : MC_OK;
}

/* What has a length must have the one that is claimed. */
static enum mc_status check_part(const struct mc_file_part *part) {
    uint64_t length;
    MC_TRY(length_of(part->path, &length));
    if (length != 0 && length < part->length) {
        mc_error("a file is shorter than its segment says path=%s length=%llu segment=%llu",
                 part->path, (unsigned long long)length, (unsigned long long)part->length);
        return MC_FILE_READ_FAIL;
    }
    return MC_OK;
}

static enum mc_status part_of_url(const char *name, struct mc_file_parts *parts) {
    const char *path = name + strlen(URL);
    uint64_t length = 0;
    if (path[0] != '/') {
        mc_error("a file segment needs an absolute path name=%s", name);
        return MC_INVALID_PARAMS;
    }
    MC_TRY(length_of(path, &length));
    if (length == 0) {
        mc_error("a file segment needs a file with a length path=%s", path);
        return MC_INVALID_PARAMS;
    }
    parts->list = mc_zalloc(sizeof(*parts->list));
    parts->list[0] = (struct mc_file_part){mc_strdup(path), length};
    parts->count = 1;
    return MC_OK;
}

static enum mc_status parts_of_service(struct mc_engine *engine, const char *name,
                                       struct mc_file_parts *parts) {
    struct mc_buf json = {0};
    enum mc_status status = mc_meta_get_descriptor(engine->meta, name, &json);
    if (status == MC_OK) {
        status = mc_file_segment_decode((struct mc_str){json.data, json.len}, engine->name, parts);
        if (status != MC_OK) {
            mc_warn_limited("not the descriptor of a file segment name=%s", name);
        }
    }
    mc_buf_free(&json);
    for (size_t i = 0; status == MC_OK && i < parts->count; i++) {
        status = check_part(&parts->list[i]);
    }
    return status;
}

enum mc_status mc_file_segment_fetch(struct mc_engine *engine, const char *name,
                                     struct mc_peer_desc **out) {
    struct mc_file_parts parts = {0};
    uint64_t total = 0;
    enum mc_status status =
        is_url(name) ? part_of_url(name, &parts) : parts_of_service(engine, name, &parts);
    if (status != MC_OK) {
        mc_file_parts_free(&parts);
        return status;
    }
    for (size_t i = 0; i < parts.count; i++) {
        total += parts.list[i].length;
    }
    struct mc_peer_desc *desc = mc_zalloc(sizeof(*desc));
    atomic_store_explicit(&desc->refs, 1, memory_order_relaxed);
    snprintf(desc->name, sizeof(desc->name), "%s", name);
    desc->buffers = mc_zalloc(sizeof(*desc->buffers));
    desc->buffers[0] = (struct mc_peer_buffer){.length = total, .location = "file", .shm_slot = -1};
    desc->buffer_count = 1;
    desc->files = mc_alloc(sizeof(*desc->files));
    *desc->files = parts;
    *out = desc;
    return MC_OK;
}

/* ---- publishing ---- */

static bool is_published_name(const char *name) {
    return mc_name_ok(name, MC_SEGMENT_NAME_MAX) && strchr(name, '/') != NULL && !is_url(name);
}

static enum mc_status take_files(const struct mc_segment_file *files, size_t count,
                                 struct mc_file_parts *parts) {
    if (files == NULL || count == 0 || count > MC_FILE_PARTS_MAX) {
        return MC_INVALID_PARAMS;
    }
    parts->list = mc_zalloc(count * sizeof(*parts->list));
    for (; parts->count < count; parts->count++) {
        const struct mc_segment_file *from = &files[parts->count];
        uint64_t length = from->length;
        if (!mc_name_ok(from->path, MC_FILE_PATH_MAX) || from->path[0] != '/') {
            return MC_INVALID_PARAMS;
        }
        if (length == 0) {
            MC_TRY(length_of(from->path, &length));
        }
        struct mc_file_part part = {(char *)(uintptr_t)from->path, length};
        if (length == 0 || length > INT64_MAX / MC_FILE_PARTS_MAX) {
            return MC_INVALID_PARAMS;
        }
        MC_TRY(check_part(&part));
        parts->list[parts->count] = (struct mc_file_part){mc_strdup(from->path), length};
    }
    return MC_OK;
}

MC_PUBLIC enum mc_status mc_segment_publish_files(struct mc_engine *engine, const char *name,
                                                  const struct mc_segment_file *files,
                                                  size_t count) {
    struct mc_file_parts parts = {0};
    struct mc_buf json = {0};
    if (!is_published_name(name)) {
        return MC_INVALID_PARAMS;
    }
    if (mc_meta_is_p2p(engine->meta)) {
        return MC_NOT_SUPPORTED;
    }
    enum mc_status status = take_files(files, count, &parts);
    if (status == MC_OK) {
        mc_file_segment_encode(name, engine->name, &parts, &json);
        status = mc_meta_publish_lasting(engine->meta, name, (struct mc_str){json.data, json.len});
    }
    mc_file_parts_free(&parts);
    mc_buf_free(&json);
    return status;
}

MC_PUBLIC enum mc_status mc_segment_withdraw_files(struct mc_engine *engine, const char *name) {
    if (!is_published_name(name)) {
        return MC_INVALID_PARAMS;
    }
    if (mc_meta_is_p2p(engine->meta)) {
        return MC_NOT_SUPPORTED;
    }
    mc_meta_withdraw_lasting(engine->meta, name);
    return MC_OK;
}
