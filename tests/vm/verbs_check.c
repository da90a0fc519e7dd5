/*
 * Reads and writes over bare libibverbs, every byte compared: no code of ours but this file. Tells
 * whether a wrong byte or a failed work request in the guest is the engine's or the kernel's.
 *
 * Usage: verbs_check FROM TO read|write BYTES PIECE QUEUE_PAIRS READS ROUNDS
 *   FROM, TO      devices (rxe0 rxe1), both of this machine
 *   BYTES, PIECE  what a round moves, and of how many bytes a work request is
 *   READS         max_rd_atomic and max_dest_rd_atomic
 * Queue pairs are connected as rdma_verbs.c connects them. Prints a line for each round that went
 * wrong and a summary; exit 1 when any did.
 */
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define QPS_MAX   16
#define DEPTH     256
#define SILENCE_S 30

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_qp *qps[QPS_MAX];
    union ibv_gid gid;
    uint8_t gid_index;
    char *memory;
};

struct plan {
    bool write;
    size_t bytes, piece;
    unsigned qps, reads, rounds;
};

static void must(bool ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(2);
    }
}

static struct ibv_context *open_device(const char *name) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    for (size_t i = 0; list != NULL && list[i] != NULL; i++) {
        if (strcmp(ibv_get_device_name(list[i]), name) == 0) {
            return ibv_open_device(list[i]);
        }
    }
    return NULL;
}

/* The first RoCEv2 address that is IPv4. */
static void choose_gid(struct end *end) {
    struct ibv_gid_entry entries[64];
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    ssize_t count = ibv_query_gid_table(end->context, entries, 64, 0);
    for (ssize_t i = 0; i < count; i++) {
        if (entries[i].gid_type == IBV_GID_TYPE_ROCE_V2 &&
            memcmp(entries[i].gid.raw, mapped, sizeof(mapped)) == 0) {
            end->gid = entries[i].gid;
            end->gid_index = (uint8_t)entries[i].gid_index;
            return;
        }
    }
    must(false, "no RoCEv2 address");
}

static void end_open(struct end *end, const char *name, const struct plan *plan) {
    must((end->context = open_device(name)) != NULL, name);
    must((end->pd = ibv_alloc_pd(end->context)) != NULL, "pd");
    must((end->cq = ibv_create_cq(end->context, DEPTH * QPS_MAX, NULL, NULL, 0)) != NULL, "cq");
    choose_gid(end);
    end->memory =
        mmap(NULL, plan->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(end->memory != MAP_FAILED, "memory");
    end->mr = ibv_reg_mr(end->pd, end->memory, plan->bytes,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    must(end->mr != NULL, "region");
    for (unsigned i = 0; i < plan->qps; i++) {
        struct ibv_qp_init_attr attr = {
            .send_cq = end->cq,
            .recv_cq = end->cq,
            .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        };
        must((end->qps[i] = ibv_create_qp(end->pd, &attr)) != NULL, "queue pair");
    }
}

static void connect_qp(struct ibv_qp *qp, const struct end *from, const struct end *to,
                       uint32_t number, const struct plan *plan) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                                                  IBV_ACCESS_REMOTE_WRITE};
    must(ibv_modify_qp(qp, &init,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
         "to INIT");
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = number,
        .max_dest_rd_atomic = (uint8_t)plan->reads,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.dgid = to->gid, .sgid_index = from->gid_index, .hop_limit = 64}}};
    must(ibv_modify_qp(qp, &receive,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
         "to RTR");
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
                               .timeout = 14,
                               .retry_cnt = 7,
                               .rnr_retry = 7,
                               .max_rd_atomic = (uint8_t)plan->reads};
    must(ibv_modify_qp(qp, &send,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0,
         "to RTS");
}

static void connect_all(struct end *a, struct end *b, const struct plan *plan) {
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    for (unsigned i = 0; i < plan->qps; i++) {
        must(ibv_modify_qp(a->qps[i], &reset, IBV_QP_STATE) == 0, "to RESET");
        must(ibv_modify_qp(b->qps[i], &reset, IBV_QP_STATE) == 0, "to RESET");
    }
    for (unsigned i = 0; i < plan->qps; i++) {
        connect_qp(a->qps[i], a, b, b->qps[i]->qp_num, plan);
        connect_qp(b->qps[i], b, a, a->qps[i]->qp_num, plan);
    }
}

/* Every 8 bytes say where they belong and of which round they are. */
static void fill(char *memory, size_t bytes, uint64_t round) {
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = i + (round << 40);
        memcpy(memory + i, &word, 8);
    }
}

/* The first wrong word of a piece, which it prints. */
static bool is_wrong(const char *memory, size_t offset, size_t bytes, uint64_t round) {
    for (size_t i = offset; i < offset + bytes; i += 8) {
        uint64_t word;
        memcpy(&word, memory + i, 8);
        if (word != i + (round << 40)) {
            printf("  wrong from byte %zu of the piece at %zu on: holds byte %llu of round %llu\n",
                   i - offset, offset, (unsigned long long)(word & 0xffffffffff),
                   (unsigned long long)(word >> 40));
            return true;
        }
    }
    return false;
}

static int post(struct end *a, const struct end *b, const struct plan *plan, size_t offset,
                unsigned qp) {
    struct ibv_sge sge = {(uint64_t)(uintptr_t)(a->memory + offset), (uint32_t)plan->piece,
                          a->mr->lkey};
    struct ibv_send_wr *bad,
        wr = {
            .wr_id = offset,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = plan->write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
            .send_flags = IBV_SEND_SIGNALED,
            .wr = {.rdma = {(uint64_t)(uintptr_t)(b->memory + offset), b->mr->rkey}},
        };
    return ibv_post_send(a->qps[qp], &wr, &bad);
}

static uint64_t now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec;
}

struct outcome { /* of a round; pieces */
    unsigned failed;
    unsigned wrong; /* told as moved, and not moved */
    bool hung;
};

static void take(const struct ibv_wc *wc, const struct end *into, const struct plan *plan,
                 uint64_t round, struct outcome *o) {
    if (wc->status == IBV_WC_SUCCESS) {
        o->wrong += is_wrong(into->memory, wc->wr_id, plan->piece, round);
    } else if (o->failed++ == 0) {
        printf("  the first that failed: the piece at %llu, %s\n", (unsigned long long)wc->wr_id,
               ibv_wc_status_str(wc->status));
    }
}

/* Posts the round's pieces by turns and takes their completions. */
static struct outcome move(struct end *a, struct end *b, const struct plan *plan, uint64_t round) {
    size_t posted = 0, done = 0, count = plan->bytes / plan->piece;
    struct outcome o = {0};
    uint64_t last = now_s();
    while (done < posted || (posted < count && o.failed == 0)) {
        while (posted < count && o.failed == 0 && posted - done < DEPTH &&
               post(a, b, plan, posted * plan->piece, (unsigned)(posted % plan->qps)) == 0) {
            posted++;
        }
        struct ibv_wc wc;
        if (ibv_poll_cq(a->cq, 1, &wc) == 1) {
            take(&wc, plan->write ? b : a, plan, round, &o);
            done++;
            last = now_s();
        } else if (now_s() - last > SILENCE_S) {
            printf("  %zu work requests never ended\n", posted - done);
            o.hung = true;
            return o;
        }
    }
    return o;
}

int main(int argc, char **argv) {
    struct end a = {0}, b = {0};
    unsigned wrong = 0, failed = 0;
    bool hung = false;
    if (argc != 9) {
        fprintf(stderr,
                "usage: verbs_check FROM TO read|write BYTES PIECE QUEUE_PAIRS READS ROUNDS\n");
        return 2;
    }
    struct plan plan = {strcmp(argv[3], "write") == 0, strtoull(argv[4], NULL, 0),
                        strtoull(argv[5], NULL, 0),    (unsigned)atoi(argv[6]),
                        (unsigned)atoi(argv[7]),       (unsigned)atoi(argv[8])};
    must(plan.qps > 0 && plan.qps <= QPS_MAX && plan.piece > 0 && plan.piece % 8 == 0 &&
             plan.bytes % plan.piece == 0,
         "arguments");
    setvbuf(stdout, NULL, _IOLBF, 0);
    end_open(&a, argv[1], &plan);
    end_open(&b, argv[2], &plan);
    connect_all(&a, &b, &plan);
    for (unsigned round = 1; round <= plan.rounds && !hung; round++) {
        fill(plan.write ? a.memory : b.memory, plan.bytes, round);
        struct outcome o = move(&a, &b, &plan, round);
        printf(o.failed + o.wrong > 0 ? "round %u: %u failed, %u wrong without an error\n" : "",
               round, o.failed, o.wrong);
        failed += o.failed;
        wrong += o.wrong;
        hung = o.hung;
        if (o.failed > 0) {
            connect_all(&a, &b, &plan);
        }
    }
    printf("%s bytes=%zu piece=%zu qps=%u reads=%u rounds=%u: %u failed, %u wrong without an "
           "error%s\n",
           argv[3], plan.bytes, plan.piece, plan.qps, plan.reads, plan.rounds, failed, wrong,
           hung ? ", and some never ended" : "");
    return failed + wrong > 0 || hung;
}
