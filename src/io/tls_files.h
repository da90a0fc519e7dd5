/*
 * The files that a TLS context was made of, and whether they are still the same: another device,
 * inode, size or time is another content. Looked at once a second at most. Not thread safe.
 */
#ifndef MC_IO_TLS_FILES_H
#define MC_IO_TLS_FILES_H

#include <sys/stat.h>

#include "io/tls.h"

#define MC_TLS_FILES 3 /* cert, key, ca */

struct mc_tls_files {
    char *paths[MC_TLS_FILES]; /* NULL = none */
    struct mc_file_version {
        dev_t device;
        ino_t inode;
        off_t size;
        struct timespec changed;
    } versions[MC_TLS_FILES];
    uint64_t next_look_ns;
};

/* MC_INVALID_PARAMS, and the log names it, when one is there and is no regular file: whoever opened
 * a pipe would wait for its writer. */
MC_MUST_USE enum mc_status mc_tls_config_check(const struct mc_tls_config *config);
/* Before the files are read: what changes meanwhile is seen later. */
void mc_tls_files_init(struct mc_tls_files *files, const struct mc_tls_config *config);
void mc_tls_files_free(struct mc_tls_files *files);
/* Since the last call. Files that cannot be used are so looked at again when they change again. */
bool mc_tls_files_changed(struct mc_tls_files *files);
struct mc_tls_config mc_tls_files_config(const struct mc_tls_files *files);
void mc_tls_files_say_renewed(const struct mc_tls_files *files);

#endif
