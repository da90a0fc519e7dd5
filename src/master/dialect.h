/*
 * dialect: which release's schema an answer must have, when the request does not tell.
 *
 * Upstream's releases changed some answers without changing the question: GetReplicaList of 0.3.12
 * and of 0.3.13 are the same bytes, and a client that gets the other release's answer cannot decode
 * it. One master serves both, so it must know whom it talks to. What is known, strongest first:
 *
 *   1. the connection has told (a request whose arguments' hash belongs to one release: PutStart,
 *      PutEnd, ...) or has proven it: it asked something else after an answer in that dialect;
 *   2. the client has: its id was seen on this connection (Ping, FetchTasks), and it told or proved
 *      on another;
 *   3. the connection follows one that hung up on our answer (below);
 *   4. the host has: somebody at the same IP address told or proved last;
 *   5. the newest release.
 *
 * Upstream's clients close a connection at once when they cannot decode an answer, and go on with
 * another of their pool, which, unlike the first connection of a process, does not begin with
 * ServiceReady. So a hang-up within HANG_UP_NS of a guessed answer that was the last thing on the
 * connection turns the client's entry (when its id is known) or hands the other dialect to the
 * host's next connection of that kind. A client that only ever reads and never mounted anything
 * thus loses its first read (an error, which to a cache is a miss), and no other: afterwards its
 * host is known. Requests without a type literal are not from a released upstream build; only what
 * their own connection told counts for them, and they leave no trace here.
 *
 * Thread safe. A connection's words belong to its reactor; the book of hosts and clients is one
 * small table under a lock that is taken only while a connection is unproven. It forgets the least
 * recently used of a bucket when full, which costs a guess, never a wrong answer to somebody known
 * by his connection.
 */
#ifndef MC_MASTER_DIALECT_H
#define MC_MASTER_DIALECT_H

#include "base/base.h"
#include "rpc/rpc.h"
#include "wire/master_rpc.h"

struct mc_dialects;
struct mc_dialects *mc_dialects_create(const struct mc_clock *clock);
void mc_dialects_destroy(struct mc_dialects *dialects);

/* The schema version to answer `request` in, of RPC `desc` whose arguments decoded as `version`.
 * `args` as decoded. */
unsigned mc_dialects_resolve(struct mc_dialects *dialects, const struct mc_rpc_request *request,
                             const struct mc_rpc_desc *desc, const void *args, unsigned version);

/* The connection with these words (MC_RPC_PEER_WORDS of them) has closed. */
void mc_dialects_closed(struct mc_dialects *dialects, const uint64_t *peer_words, const char *peer);

#endif
