/*
 * Mooncake status codes.
 *
 * Every fallible function of the library returns `enum mc_status`: MC_OK (0) or a negative code.
 * Codes down to -1999 are upstream Mooncake's ErrorCode, same name and number, so that they can
 * travel on the wire and be shown to users unchanged. Codes from -3000 on are ours and never leave
 * the process: the edges (RPC, C ABI) translate them to the nearest upstream code with
 * mc_status_to_wire().
 *
 * The table below is the only place where a code is declared; the enum, mc_status_name() and the
 * reference page are made from it.
 */
#ifndef MOONCAKE_ERROR_H
#define MOONCAKE_ERROR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, number, what it means to the person who meets it) */
#define MC_STATUS_TABLE(X)                                                                         \
    X(OK, 0, "success")                                                                            \
    X(INTERNAL_ERROR, -1, "an invariant of the library does not hold; please report")              \
    X(BUFFER_OVERFLOW, -10, "the caller's buffer is too small")                                    \
    X(SHARD_INDEX_OUT_OF_RANGE, -100, "shard index out of range")                                  \
    X(SEGMENT_NOT_FOUND, -101, "no such segment")                                                  \
    X(SEGMENT_ALREADY_EXISTS, -102, "the segment is already mounted")                              \
    X(CLIENT_NOT_FOUND, -103, "the master does not know this client")                              \
    X(NO_AVAILABLE_HANDLE, -200, "no segment has room for the object")                             \
    X(INVALID_VERSION, -300, "the version does not match")                                         \
    X(INVALID_KEY, -400, "the key is not acceptable")                                              \
    X(WRITE_FAIL, -500, "the write failed")                                                        \
    X(INVALID_PARAMS, -600, "an argument is out of its range")                                     \
    X(ILLEGAL_CLIENT, -601, "the object or task belongs to another client")                        \
    X(INVALID_WRITE, -700, "there is no write in progress that this call could end")               \
    X(INVALID_READ, -701, "the read is not possible")                                              \
    X(INVALID_REPLICA, -702, "the replica descriptor is not usable")                               \
    X(REPLICA_IS_NOT_READY, -703, "the object is being written")                                   \
    X(OBJECT_NOT_FOUND, -704, "no such object")                                                    \
    X(OBJECT_ALREADY_EXISTS, -705, "the object exists")                                            \
    X(OBJECT_HAS_LEASE, -706, "a reader holds a lease on the object")                              \
    X(LEASE_EXPIRED, -707, "the lease ended before the transfer did")                              \
    X(OBJECT_HAS_REPLICATION_TASK, -708, "a copy, move or offload of the object is running")       \
    X(OBJECT_NO_REPLICATION_TASK, -709, "no copy or move of the object is running")                \
    X(REPLICA_NOT_FOUND, -710, "no such replica")                                                  \
    X(REPLICA_ALREADY_EXISTS, -711, "the replica exists")                                          \
    X(REPLICA_IS_GONE, -712, "the replica has gone")                                               \
    X(REPLICA_NOT_IN_LOCAL_MEMORY, -713, "the replica is not in this process's memory")            \
    X(OBJECT_REPLICA_BUSY, -714, "a reader or task uses the replica")                              \
    X(TRANSFER_FAIL, -800, "the bytes could not be moved")                                         \
    X(CHECKSUM_MISMATCH, -801, "the bytes read are not the bytes written")                         \
    X(RPC_FAIL, -900, "the RPC failed")                                                            \
    X(RPC_TIMEOUT, -901, "the RPC did not answer in time")                                         \
    X(ETCD_OPERATION_ERROR, -1000, "etcd refused the operation")                                   \
    X(ETCD_KEY_NOT_EXIST, -1001, "no such key in etcd")                                            \
    X(ETCD_TRANSACTION_FAIL, -1002, "the etcd transaction failed")                                 \
    X(ETCD_CTX_CANCELLED, -1003, "the etcd call was cancelled")                                    \
    X(OPLOG_ENTRY_NOT_FOUND, -1004, "no such op log entry")                                        \
    X(K8S_LEASE_OPERATION_ERROR, -1005, "Kubernetes refused the lease operation")                  \
    X(K8S_LEASE_NOT_FOUND, -1006, "no such Kubernetes lease")                                      \
    X(INCOMPLETE_OPLOG_CATCH_UP, -1007, "the op log is not replayed to its durable end")           \
    X(UNAVAILABLE_IN_CURRENT_STATUS, -1010, "not possible in the current state")                   \
    X(UNAVAILABLE_IN_CURRENT_MODE, -1011, "not possible in this mode of operation")                \
    X(NOT_SUPPORTED, -1012, "not supported by this build or configuration")                        \
    X(FILE_NOT_FOUND, -1100, "no such file")                                                       \
    X(FILE_OPEN_FAIL, -1101, "the file cannot be opened")                                          \
    X(FILE_READ_FAIL, -1102, "the file cannot be read")                                            \
    X(FILE_WRITE_FAIL, -1103, "the file cannot be written")                                        \
    X(FILE_INVALID_BUFFER, -1104, "the buffer is not usable for file I/O")                         \
    X(FILE_LOCK_FAIL, -1105, "the file cannot be locked")                                          \
    X(FILE_INVALID_HANDLE, -1106, "the file handle is not valid")                                  \
    X(BUCKET_NOT_FOUND, -1200, "no such bucket")                                                   \
    X(BUCKET_ALREADY_EXISTS, -1201, "the bucket exists")                                           \
    X(KEYS_EXCEED_BUCKET_LIMIT, -1202, "more keys than a bucket may hold")                         \
    X(KEYS_ULTRA_LIMIT, -1203, "more keys than the tier may hold")                                 \
    X(UNABLE_OFFLOAD, -1300, "offloading is off")                                                  \
    X(UNABLE_OFFLOADING, -1301, "offloading is not possible now")                                  \
    X(TASK_NOT_FOUND, -1400, "no such task")                                                       \
    X(TASK_PENDING_LIMIT_EXCEEDED, -1401, "too many tasks are pending")                            \
    X(JOB_NOT_FOUND, -1402, "no such job")                                                         \
    X(SERIALIZE_UNSUPPORTED, -1500, "this type cannot be serialised")                              \
    X(SERIALIZE_FAIL, -1501, "serialisation failed")                                               \
    X(DESERIALIZE_FAIL, -1502, "the bytes are not a valid message")                                \
    X(PERSISTENT_FAIL, -1503, "the state could not be made durable")                               \
    X(DFS_NETWORK_TIMEOUT, -1600, "the distributed file system timed out")                         \
    X(DFS_SERVICE_UNAVAILABLE, -1601, "the distributed file system is not available")              \
    X(DFS_QUOTA_EXCEEDED, -1602, "the distributed file system's quota is used up")                 \
    X(DFS_PERMISSION_DENIED, -1603, "the distributed file system denied access")                   \
    X(DFS_STALE_HANDLE, -1604, "the distributed file system's handle is stale")                    \
    X(DFS_PARTIAL_WRITE, -1605, "the distributed file system wrote only a part")                   \
    X(TENANT_QUOTA_EXCEEDED, -1700, "the tenant's quota is used up")                               \
    X(TENANT_NOT_REGISTERED, -1701, "the tenant has no quota policy")                              \
    X(TENANT_NOT_EMPTY, -1702, "the tenant still owns objects")                                    \
    X(ERR_NO_MEMORY, -3000, "out of memory")                                                       \
    X(ERR_TIMEOUT, -3001, "the deadline passed")                                                   \
    X(ERR_CLOSED, -3002, "the peer closed the connection")                                         \
    X(ERR_IO, -3003, "the operating system reported an I/O error")                                 \
    X(ERR_ADDRESS_IN_USE, -3004, "the address or port is in use")                                  \
    X(ERR_BAD_ADDRESS, -3005, "the address cannot be parsed or resolved")                          \
    X(ERR_UNREACHABLE, -3006, "the peer cannot be reached")                                        \
    X(ERR_PROTOCOL, -3007, "the peer broke the protocol")                                          \
    X(ERR_LIMIT, -3008, "a configured limit is reached; try again later")                          \
    X(ERR_NOT_REGISTERED, -3009, "the address range is not inside one registered buffer")          \
    X(ERR_OVERLAP, -3010, "the range overlaps a registered buffer")                                \
    X(ERR_NOT_FOUND, -3011, "not found")                                                           \
    X(ERR_EXISTS, -3012, "exists already")                                                         \
    X(ERR_BUSY, -3013, "still in use")                                                             \
    X(ERR_CANCELLED, -3014, "cancelled")                                                           \
    X(ERR_REJECTED, -3015, "the peer rejected the request")                                        \
    X(ERR_NO_TRANSPORT, -3016, "no transport can serve the request")                               \
    X(ERR_WIRE_HASH, -3017, "the message has another type than expected")                          \
    X(ERR_USAGE, -3018, "the command line or configuration is wrong")

enum mc_status {
#define X(name, number, text) MC_##name = (number),
    MC_STATUS_TABLE(X)
#undef X
};

#define MC_MUST_USE __attribute__((warn_unused_result))

/* "OBJECT_NOT_FOUND" for MC_OBJECT_NOT_FOUND; "UNKNOWN_ERROR" for a number not in the table. Never
 * NULL. */
const char *mc_status_name(int status);

/* One line for a person; never NULL. */
const char *mc_status_text(int status);

/* The upstream code (0 … -1999) that stands for `status` on the wire and in upstream's ABIs. */
int32_t mc_status_to_wire(enum mc_status status);

#ifdef __cplusplus
}
#endif
#endif
