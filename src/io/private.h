/* What the files of io share among themselves. */
#ifndef MC_IO_PRIVATE_H
#define MC_IO_PRIVATE_H

#include "io/io.h"

/* Copies an IPv4 or IPv6 address; an IPv4-mapped one becomes IPv4. False for other families. */
bool mc_addr_from_sockaddr(const struct sockaddr *sa, struct mc_addr *out);

/* One read or write that never blocks: MC_OK with *n == 0 = would block; MC_ERR_CLOSED;
 * MC_ERR_IO. */
enum mc_status mc_socket_readv(int fd, const struct iovec *iov, int count, size_t *n);
enum mc_status mc_socket_writev(int fd, const struct iovec *iov, int count, size_t *n);
/* mc_socket_readv with flags for recv(2). */
enum mc_status mc_socket_receive(int fd, const struct iovec *iov, int count, int flags, size_t *n);

void mc_spin_init(struct mc_spin *spin);
/* Round each wait for an answer; true = so few threads wait that this one may look. */
bool mc_spin_enter(void);
void mc_spin_leave(void);
/* Looks for bytes until the spin's limit; MC_OK with *n == 0 = none came, or it did not look. */
enum mc_status mc_spin_read(struct mc_stream *s, const struct iovec *iov, int count, size_t *n);

#endif
