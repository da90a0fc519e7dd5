/* Memory that same-host peers can map; see pages.c. */
#ifndef MC_TE_PAGES_H
#define MC_TE_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mooncake/error.h"

struct mc_pages {
    void *ptr;
    size_t bytes; /* of the mapping and the file: whole pages */
    size_t page_bytes;
    int fd;
};

/* At least `length` bytes, zero. huge_bytes: 0, or the size of huge pages to try first.
 * MC_ERR_NO_MEMORY. */
enum mc_status mc_pages_map(size_t length, uint64_t huge_bytes, struct mc_pages *out);
bool mc_pages_are_huge(const struct mc_pages *pages);
void mc_pages_unmap(const struct mc_pages *pages);

#endif
