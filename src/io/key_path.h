/*
 * Names of files that hold one object each: upstream's, for its SSD backend of a file per key and
 * for the copies of objects in a shared file system. <directory>/<c1>/<c2>/<key, characters that
 * file systems dislike replaced by _>, where c1 and c2 are letters from a to p taken from the low
 * byte of libstdc++'s std::hash<string> of the key. Two keys can have the same name.
 */
#ifndef MC_IO_KEY_PATH_H
#define MC_IO_KEY_PATH_H

#include "base/base.h"

/* Appended, with a NUL behind it. */
void mc_key_path(struct mc_str directory, struct mc_str key, struct mc_buf *out);
/* Its parts: "/<c1>/<c2>/", and a text (its first `most` bytes) as the name of a file. */
void mc_key_directory(struct mc_str key, struct mc_buf *out);
void mc_path_name(struct mc_str text, size_t most, struct mc_buf *out);

#endif
