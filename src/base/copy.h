/*
 * Copying values: large ones past the cache, and none at the speed that `rep movsb` has where
 * source and destination lie badly to each other (copy.c).
 *
 * An ordinary copy that the cache cannot hold fetches every line of the destination only to
 * overwrite it, and drives out what its caller works with. These write around the cache. The bytes
 * are visible to whoever sees what the caller does next, as with memcpy.
 *
 * Whether that is a gain depends on who reads next: the writer of a value of the cluster does not,
 * so short ones count already, unless the writer has just written to the same place and its caches
 * still hold that; the reader of one does, so it must be too long to be found in the cache.
 */
#ifndef MC_BASE_COPY_H
#define MC_BASE_COPY_H

#include <stddef.h>

/* As memcpy. */
void mc_copy_out(void *to, const void *from, size_t length); /* to memory that others will read */
void mc_copy_in(void *to, const void *from, size_t length);  /* to memory that the caller reads */

#endif
