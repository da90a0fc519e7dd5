/*
 * The tcp transport's lane: what moves on it.
 *
 * Requests leave gathered: the headers of many slices, and the payload of writes from where it
 * lies, in one call. Answers arrive gathered too: because the peer answers in order, the place of
 * every byte is known beforehand, so one call receives status words and the payload of many slices
 * straight into their destinations. A peer that refuses a request closes the connection behind the
 * status, so nothing wrong can follow into a destination; should a broken peer send bytes all the
 * same, they land in ranges that it was asked to fill and whose slices then fail.
 *
 * The plain protocol does not confirm writes, and a failure must never be reported as success: a
 * plain write is followed by a read of its last byte on the same connection, whose answer proves
 * that the write before it was applied.
 *
 * A long request to an engine of ours is padded: empty ones before it move its payload from the
 * first bytes of the kernel's pages at the sender to a multiple of a cache line. Processors of AMD
 * copy ten times slower where the destination lies 1 to 31 bytes further in its page than the
 * source in its own, which is where a page-aligned payload behind one header or status word lands.
 * Before a read they ask for acknowledgement, so that the server says more status words; before a
 * write they do not, so that nothing is answered.
 */
#include "te/transport/tcp.h"

#include <errno.h>
#include <poll.h>

#include "base/log.h"

#define BURST_SLICES       32
#define SEND_CALL_BYTES    (4ull << 20)
#define SEND_TURN_BYTES    (8ull << 20)
#define RECEIVE_TURN_BYTES (8ull << 20)
#define PADDED_BYTES       (32ull << 10)
#define STATUS_FINE        (TCP_STATUS_MAGIC | TCP_STATUS_OK)

static struct mc_slice_op *slice_at(struct mc_list *link) {
    return mc_container_of(link, struct mc_slice_op, transport_link);
}

static bool is_write(const struct mc_slice_op *slice) {
    return slice->op == MC_TRANSFER_WRITE;
}

static bool is_padded(const struct tcp_lane *lane, const struct mc_slice_op *slice) {
    return lane->peer->pads && slice->length >= PADDED_BYTES;
}

/* ---- requests out ---- */

uint64_t tcp_slice_wire_bytes(const struct tcp_lane *lane, const struct mc_slice_op *slice) {
    uint64_t headers = is_padded(lane, slice) ? 1 + TCP_PADS : 1;
    if (is_write(slice)) {
        return headers * TCP_HEADER_BYTES + slice->length + (lane->acked ? 0 : TCP_HEADER_BYTES);
    }
    return headers * TCP_HEADER_BYTES;
}

struct burst {
    uint64_t total;
    int iov_count;
    int header_count;
    struct iovec iov[3 * BURST_SLICES];
    unsigned char headers[(1 + TCP_PADS) * BURST_SLICES][TCP_HEADER_BYTES];
};

/* Adds what of [base, base + length) lies behind *skip bytes; neighbours in memory become one
 * entry. */
static void burst_add(struct burst *b, const void *base, uint64_t length, uint64_t *skip) {
    if (*skip >= length) {
        *skip -= length;
        return;
    }
    char *at = (char *)base + *skip;
    uint64_t part = length - *skip;
    struct iovec *last = b->iov_count > 0 ? &b->iov[b->iov_count - 1] : NULL;
    *skip = 0;
    b->total += part;
    if (last != NULL && (char *)last->iov_base + last->iov_len == at) {
        last->iov_len += part;
        return;
    }
    b->iov[b->iov_count++] = (struct iovec){at, part};
}

static void burst_add_header(struct burst *b, const struct tcp_header *header, uint64_t *skip) {
    unsigned char *at = b->headers[b->header_count++];
    tcp_header_encode(at, header);
    burst_add(b, at, TCP_HEADER_BYTES, skip);
}

static void burst_build_locked(struct tcp_lane *lane, struct burst *b) {
    uint64_t skip = lane->sent_bytes;
    uint8_t acked = lane->acked ? TCP_OPCODE_ACKED : 0;
    int slices = 0;
    b->total = 0;
    b->iov_count = b->header_count = 0;
    for (struct mc_list *i = lane->unsent;
         i != &lane->slices && slices < BURST_SLICES && b->total < SEND_CALL_BYTES;
         i = i->next, slices++) {
        const struct mc_slice_op *slice = slice_at(i);
        uint8_t opcode = is_write(slice) ? TCP_OPCODE_WRITE : TCP_OPCODE_READ;
        struct tcp_header pad = {0, slice->remote,
                                 is_write(slice) ? TCP_OPCODE_READ : opcode | acked};
        for (int n = is_padded(lane, slice) ? TCP_PADS : 0; n > 0; n--) {
            burst_add_header(b, &pad, &skip);
        }
        struct tcp_header header = {slice->length, slice->remote, opcode | acked};
        burst_add_header(b, &header, &skip);
        if (is_write(slice)) {
            burst_add(b, slice->local, slice->length, &skip);
        }
        if (is_write(slice) && !lane->acked) {
            header = (struct tcp_header){1, slice->remote + slice->length - 1, TCP_OPCODE_READ};
            burst_add_header(b, &header, &skip);
        }
    }
}

static void account_sent_locked(struct tcp_lane *lane, uint64_t n) {
    lane->moved |= n > 0;
    while (n > 0) {
        uint64_t left = tcp_slice_wire_bytes(lane, slice_at(lane->unsent)) - lane->sent_bytes;
        if (n < left) {
            lane->sent_bytes += n;
            return;
        }
        n -= left;
        lane->unsent = lane->unsent->next;
        lane->sent_bytes = 0;
    }
}

static void log_lane_failure(const struct tcp_lane *lane, const char *step, enum mc_status status,
                             int error) {
    if (lane->pending == 0) { /* the peer closed an idle connection: no news */
        mc_debug("tcp: idle connection ended: peer=%s lane=%u", lane->peer->name, lane->index);
        return;
    }
    mc_warn_limited("tcp: connection failed: peer=%s lane=%u step=%s status=%s errno=%d pending=%u",
                    lane->peer->name, lane->index, step, mc_status_name(status), error,
                    lane->pending);
}

/* The head slice's answer is a refusal, or nonsense. */
static void answer_bad_locked(struct tcp_lane *lane, uint64_t word) {
    struct mc_slice_op *slice = slice_at(lane->slices.next);
    bool refusal = (word >> 32) == (TCP_STATUS_MAGIC >> 32);
    mc_warn_limited("tcp: %s: peer=%s lane=%u op=%s addr=0x%llx length=%llu status=0x%llx",
                    refusal ? "the peer refused the request" : "the answer is not of the protocol",
                    lane->peer->name, lane->index, is_write(slice) ? "write" : "read",
                    (unsigned long long)slice->remote, (unsigned long long)slice->length,
                    (unsigned long long)word);
    if (refusal) {
        slice->transport_data[TCP_SLICE_ENDING] = TCP_ENDING_REFUSED;
    }
    tcp_lane_fail_locked(lane, refusal ? MC_ERR_CLOSED : MC_ERR_PROTOCOL, true);
}

/* Nothing is expected, yet the socket is readable or broken: the peer left, or refuses a write
 * whose payload is still on its way, or breaks the protocol. By the sender, so that nothing can be
 * sent and rightly answered meanwhile. Drops the lock. */
static void receive_unexpected_locked(struct tcp_lane *lane) {
    uint64_t word = 0;
    struct iovec iov = {&word, sizeof(word)};
    size_t n = 0;
    MC_ASSERT(lane->sending && lane->slices.next == lane->unsent);
    pthread_mutex_unlock(&lane->lock);
    enum mc_status status = lane->stream.ops->readv(&lane->stream, &iov, 1, &n);
    int error = errno;
    pthread_mutex_lock(&lane->lock);
    if (lane->state != TCP_LANE_UP || (status == MC_OK && n == 0)) {
        return;
    }
    word = le64toh(word);
    if (status != MC_OK) {
        log_lane_failure(lane, "receive", status, status == MC_ERR_CLOSED ? 0 : error);
        tcp_lane_fail_locked(lane, status, true);
    } else if (lane->pending > 0 && lane->sent_bytes > 0 && n == sizeof(word) &&
               word != STATUS_FINE) {
        answer_bad_locked(lane, word);
    } else {
        log_lane_failure(lane, "receive what was not asked for", MC_ERR_PROTOCOL, 0);
        tcp_lane_fail_locked(lane, MC_ERR_PROTOCOL, true);
    }
}

/* One call. False when no more can be sent now. */
static bool send_burst_locked(struct tcp_lane *lane, uint64_t *budget) {
    struct burst b;
    size_t n = 0;
    burst_build_locked(lane, &b);
    MC_ASSERT(b.iov_count > 0);
    pthread_mutex_unlock(&lane->lock);
    enum mc_status status = lane->stream.ops->writev(&lane->stream, b.iov, b.iov_count, &n);
    int error = errno;
    pthread_mutex_lock(&lane->lock);
    if (status == MC_OK) {
        account_sent_locked(lane, n);
        *budget -= mc_min_u64(*budget, n);
        lane->send_blocked = n < b.total;
        return !lane->send_blocked;
    }
    if (lane->slices.next == lane->unsent && lane->sent_bytes > 0) {
        receive_unexpected_locked(lane); /* the peer may have said why it closed */
    }
    if (lane->state == TCP_LANE_UP) {
        log_lane_failure(lane, "send", status, error);
        tcp_lane_fail_locked(lane, status, true);
    }
    return false;
}

void tcp_lane_send_locked(struct tcp_lane *lane) {
    if (lane->sending) {
        lane->send_again = true;
        return;
    }
    uint64_t budget = SEND_TURN_BYTES;
    lane->sending = true;
    do {
        lane->send_again = lane->send_blocked = false;
        while (lane->state == TCP_LANE_UP && lane->unsent != &lane->slices &&
               lane->cancellers == 0 && budget > 0 && send_burst_locked(lane, &budget)) {
        }
    } while (lane->send_again && lane->state == TCP_LANE_UP && lane->cancellers == 0 && budget > 0);
    tcp_lane_sender_left_locked(lane);
}

/* ---- answers in ---- */

struct intake {
    uint64_t total;
    int iov_count;
    int slice_count;
    struct mc_slice_op *slices[BURST_SLICES];
    uint64_t words[BURST_SLICES][1 + TCP_PADS]; /* [0] is unused: the head's status may be half
                                                   received, so it is the lane's */
    struct iovec iov[2 * BURST_SLICES];
};

/* What the answer to a slice begins with. */
static uint32_t status_bytes(const struct tcp_lane *lane, const struct mc_slice_op *slice) {
    bool padded = is_padded(lane, slice) && !is_write(slice);
    return !lane->acked ? 0 : padded ? (1 + TCP_PADS) * TCP_STATUS_BYTES : TCP_STATUS_BYTES;
}

/* Of the status words that are here, the first that is not fine. */
static uint64_t status_so_far(const struct tcp_lane *lane) {
    for (uint32_t i = 0; i < lane->status_got / TCP_STATUS_BYTES; i++) {
        if (le64toh(lane->status[i]) != STATUS_FINE) {
            return le64toh(lane->status[i]);
        }
    }
    return STATUS_FINE;
}

/* And what it holds behind that. */
static uint64_t answer_bytes(const struct tcp_lane *lane, const struct mc_slice_op *slice) {
    return !is_write(slice) ? slice->length : lane->acked ? 0 : 1;
}

static void intake_add(struct intake *in, void *base, uint64_t length) {
    if (length > 0) {
        in->iov[in->iov_count++] = (struct iovec){base, length};
        in->total += length;
    }
}

static void intake_build_locked(struct tcp_lane *lane, struct intake *in) {
    uint64_t status_got = lane->status_got, payload_got = lane->payload_got;
    in->total = 0;
    in->iov_count = in->slice_count = 0;
    for (struct mc_list *i = lane->slices.next;
         i != lane->unsent && in->slice_count < BURST_SLICES && in->total < RECEIVE_TURN_BYTES;
         i = i->next, in->slice_count++, status_got = payload_got = 0) {
        struct mc_slice_op *slice = slice_at(i);
        int n = in->slice_count;
        char *payload = is_write(slice) ? &lane->confirmed : slice->local;
        in->slices[n] = slice;
        char *status = (char *)(n == 0 ? lane->status : in->words[n]);
        intake_add(in, status + status_got, status_bytes(lane, slice) - status_got);
        intake_add(in, payload + payload_got, answer_bytes(lane, slice) - payload_got);
    }
}

/* Hands n received bytes to the slices they belong to. Returns how many slices are complete. *bad:
 * the answer to the one behind them is not OK. */
static int intake_take(struct tcp_lane *lane, const struct intake *in, uint64_t n, bool *bad) {
    for (int i = 0; i < in->slice_count; i++) {
        uint32_t status = status_bytes(lane, in->slices[i]);
        if (lane->status_got < status) {
            uint32_t part = (uint32_t)mc_min_u64(n, status - lane->status_got);
            if (i > 0) {
                memcpy(lane->status, in->words[i], sizeof(lane->status));
            }
            lane->status_got += part;
            n -= part;
            *bad = status_so_far(lane) != STATUS_FINE;
            if (*bad || lane->status_got < status) {
                return i;
            }
        }
        uint64_t expected = answer_bytes(lane, in->slices[i]);
        uint64_t part = mc_min_u64(n, expected - lane->payload_got);
        lane->payload_got += part;
        n -= part;
        if (lane->payload_got < expected) {
            return i;
        }
        lane->status_got = 0;
        lane->payload_got = 0;
    }
    return in->slice_count;
}

/* Ends the first `count` slices well. Drops the lock. */
static void complete_locked(struct tcp_lane *lane, const struct intake *in, int count) {
    struct tcp_metrics *metrics = &lane->peer->transport->metrics;
    uint64_t bytes[2] = {0}, requests[2] = {0};
    for (int i = 0; i < count; i++) {
        tcp_lane_unlink_locked(lane, in->slices[i]);
        bytes[in->slices[i]->op] += in->slices[i]->length;
        requests[in->slices[i]->op]++;
    }
    if (!lane->answered) {
        lane->answered = true;
        atomic_store_explicit(&lane->peer->refusals, 0, memory_order_relaxed);
    }
    tcp_lane_complete_begin_locked(lane);
    for (int op = 0; op < 2; op++) {
        if (requests[op] > 0) {
            mc_metric_add(&metrics->bytes[op], (int64_t)bytes[op]);
            mc_metric_add(&metrics->requests[op], (int64_t)requests[op]);
        }
    }
    for (int i = 0; i < count; i++) {
        mc_slice_done(in->slices[i], MC_OK, false);
    }
    tcp_lane_complete_end_locked(lane);
}

static enum mc_status read_lane(struct tcp_lane *lane, const struct intake *in, bool sleep,
                                size_t *n) {
    if (sleep && mc_stream_is_plain(&lane->stream)) {
        return mc_stream_recv_once(&lane->stream, in->iov, in->iov_count, n);
    }
    MC_TRY(lane->stream.ops->readv(&lane->stream, in->iov, in->iov_count, n));
    if (!sleep || *n > 0) {
        return MC_OK;
    }
    uint64_t until = mc_now_ns(mc_clock_system()) + MC_READ_SLEEP_NS;
    enum mc_status status = mc_wait_ready(lane->stream.fd, POLLIN, until);
    if (status == MC_ERR_TIMEOUT) {
        return MC_OK; /* nothing came */
    }
    MC_TRY(status);
    return lane->stream.ops->readv(&lane->stream, in->iov, in->iov_count, n);
}

/* One call. False when nothing more is to be had now. */
static bool receive_burst_locked(struct tcp_lane *lane, bool sleep, uint64_t *budget) {
    struct intake in;
    size_t n = 0;
    bool bad = false;
    intake_build_locked(lane, &in);
    MC_ASSERT(in.iov_count > 0);
    pthread_mutex_unlock(&lane->lock);
    enum mc_status status = read_lane(lane, &in, sleep, &n);
    int error = errno;
    pthread_mutex_lock(&lane->lock);
    if (lane->state != TCP_LANE_UP) {
        return false; /* given up meanwhile: what came is not looked at */
    }
    if (status != MC_OK) {
        log_lane_failure(lane, "receive", status, status == MC_ERR_CLOSED ? 0 : error);
        tcp_lane_fail_locked(lane, status, true);
        return false;
    }
    lane->moved |= n > 0;
    *budget -= mc_min_u64(*budget, n);
    int complete = intake_take(lane, &in, n, &bad);
    if (complete > 0) {
        complete_locked(lane, &in, complete);
    }
    if (bad && lane->state == TCP_LANE_UP) {
        answer_bad_locked(lane, status_so_far(lane));
    }
    return n == in.total || (n > 0 && (lane->hang_up || sleep));
}

bool tcp_lane_receive_locked(struct tcp_lane *lane, const _Atomic uint32_t *done, bool sleep) {
    uint64_t budget = RECEIVE_TURN_BYTES;
    MC_ASSERT(lane->driver != TCP_DRIVER_NONE);
    while (lane->state == TCP_LANE_UP && lane->cancellers == 0) {
        if (done != NULL && atomic_load_explicit(done, memory_order_acquire) != 0) {
            return false;
        }
        if (budget == 0 || (sleep && (lane->owner_pending == 0 || lane->send_blocked))) {
            return true;
        }
        if (lane->slices.next != lane->unsent) {
            if (!receive_burst_locked(lane, sleep, &budget)) {
                return false;
            }
        } else if (lane->sending) {
            lane->receive_again = true;
            return false;
        } else {
            lane->sending = true;
            receive_unexpected_locked(lane);
            tcp_lane_sender_left_locked(lane);
            return false;
        }
    }
    return false;
}
