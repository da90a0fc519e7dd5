/*
 * The descriptor of a file segment in a metadata service, upstream's "nvmeof" JSON: files laid end
 * to end, each with its length and the path by which a server reaches it.
 *
 *     {"name": "/pool/a", "protocol": "nvmeof", "buffers": [{"file_path": "/mnt/nvme0/a",
 *      "length": 1073741824, "local_path_map": {"10.0.0.1:15231": "/mnt/local/a"}}]}
 *
 * A descriptor makes this process open paths. It is therefore read only under the names of file
 * segments (te/file_segment.c), never in the place of an engine's, and paths must be absolute.
 */
#ifndef MC_WIRE_FILE_SEGMENT_H
#define MC_WIRE_FILE_SEGMENT_H

#include "base/base.h"

#define MC_FILE_PARTS_MAX 4096
#define MC_FILE_PATH_MAX  1024 /* with the NUL */

struct mc_file_part {
    char *path;
    uint64_t length;
};
struct mc_file_parts {
    size_t count;
    struct mc_file_part *list;
};

/* Paths as `server` reaches them. MC_ERR_PROTOCOL (logged at debug level) unless all of it is
 * usable and the lengths add up. On success free with mc_file_parts_free. */
MC_MUST_USE enum mc_status mc_file_segment_decode(struct mc_str json, const char *server,
                                                  struct mc_file_parts *out);
void mc_file_segment_encode(const char *name, const char *server, const struct mc_file_parts *parts,
                            struct mc_buf *out);
void mc_file_parts_free(struct mc_file_parts *parts);

#endif
