/*
 * The network between processes and the master, and between processes and the nodes' SSDs.
 *
 * A call is a request that travels, is carried out when it arrives, and an answer that travels
 * back; each may be late, lost or doubled, and so they overtake each other. The call itself is a
 * counted object that the messages refer to: an answer that arrives after the caller has gone
 * finds that it is over and is dropped. As the port promises, a call that ended with MC_RPC_FAIL
 * (the connection broke) is not carried out later; one that ended with MC_RPC_TIMEOUT may be.
 */
#include "sim/sim.h"
#include "wire/client_rpc.h"

struct call {
    unsigned refs;
    struct sim_process *process;
    struct sim_node *peer; /* who carries it out; NULL = the master */
    uint64_t serial;       /* of the caller's park */
    uint64_t operation;
    uint32_t function_id;
    uint64_t sent_ns;
    struct mc_buf request;
    struct mc_buf reply;
    enum mc_status status;
    bool over;   /* the caller has its result or has gone */
    bool broken; /* and the connection with it: not to be carried out any more */
};
struct answer {
    struct call *call;
    struct mc_buf body;
};

static void call_unref(struct call *call) {
    if (--call->refs == 0) {
        mc_buf_free(&call->request);
        mc_buf_free(&call->reply);
        free(call);
    }
}

static bool cut(const struct sim *sim, const struct sim_process *process) {
    return sim->now_ns < process->cut_until_ns;
}

/* All but those that a port must deliver at most once: see the head of sim.h. */
static bool may_be_doubled(const struct call *call) {
    if (call->peer != NULL) {
        return true;
    }
    switch (mc_master_rpc_index(mc_master_rpc_find(call->function_id))) {
    case MC_RPC_PutStart:
    case MC_RPC_BatchPutStart:
    case MC_RPC_UpsertStart:
    case MC_RPC_BatchUpsertStart:
    case MC_RPC_StartPuts:
    case MC_RPC_CopyStart:
    case MC_RPC_MoveStart:
    case MC_RPC_CreateCopyTask:
    case MC_RPC_CreateMoveTask:
    case MC_RPC_MountSegment:
    case MC_RPC_ReMountSegment:
        return false;
    default:
        return true;
    }
}

static void finish(struct sim *sim, struct call *call, enum mc_status status) {
    if (!call->over) {
        call->over = true;
        call->broken = status == MC_RPC_FAIL;
        call->status = status;
        sim_wake(sim, call->process, call->serial);
    }
}

/* ---- the way back ---- */

static void answer_arrives(struct sim *sim, void *arg, uint64_t word) {
    struct answer *a = arg;
    struct call *call = a->call;
    if (!sim->closing && !call->over && !cut(sim, call->process)) {
        call->reply = a->body;
        a->body = (struct mc_buf){0};
        finish(sim, call, MC_OK);
    } else if (!sim->closing) {
        SIM_COUNT(sim, answers_late);
    }
    mc_buf_free(&a->body);
    free(a);
    call_unref(call);
}

static void send_answer(struct sim *sim, struct call *call, const struct mc_buf *body,
                        uint64_t after_ns) {
    struct answer *a = mc_zalloc(sizeof(*a));
    a->call = call;
    call->refs++;
    mc_buf_append(&a->body, body->data, body->len);
    sim_at(sim, sim->now_ns + after_ns + sim_latency(sim), answer_arrives, a, 0);
}

/* The caller learns that the connection is gone. */
static void refusal_arrives(struct sim *sim, void *arg, uint64_t word) {
    if (!sim->closing) {
        finish(sim, arg, MC_RPC_FAIL);
    }
    call_unref(arg);
}

static void refuse(struct sim *sim, struct call *call) {
    call->refs++;
    sim_at(sim, sim->now_ns + sim_latency(sim), refusal_arrives, call, 0);
}

/* ---- where it is carried out ---- */

static void answer(struct sim *sim, struct call *call, const struct mc_buf *body,
                   uint64_t after_ns) {
    if (sim_chance(sim, sim->profile.loss)) {
        SIM_COUNT(sim, answers_lost);
        if (sim_odds(sim, 50)) {
            refuse(sim, call);
        }
    } else {
        send_answer(sim, call, body, after_ns);
    }
    if (sim_chance(sim, sim->profile.doubling)) {
        send_answer(sim, call, body, after_ns);
    }
}

static struct mc_rpc_request request_of(struct sim *sim, struct call *call) {
    return (struct mc_rpc_request){.function_id = call->function_id,
                                   .body = {call->request.data, call->request.len},
                                   .arena = &sim->master_arena,
                                   .peer = "sim:1",
                                   .peer_words = sim->peer_words};
}

static void at_the_master(struct sim *sim, struct call *call) {
    struct mc_buf body = {0};
    struct mc_rpc_request request = request_of(sim, call);
    struct mc_rpc_reply reply = {.body = &body};
    SIM_COUNT(sim, requests);
    if (call->over) {
        SIM_COUNT(sim, requests_late);
    }
    sim_ledger_before(sim, call->function_id);
    sim_ssd_before(sim, call->function_id);
    mc_master_serve(sim->master, &request, &reply);
    mc_arena_reset(&sim->master_arena);
    sim_note(sim, mc_hash64(body.data, body.len, call->function_id));
    if (reply.errc != MC_RPC_OK) {
        sim_fail(sim, "the master refused %s of %s: errc=%d",
                 mc_master_rpc_find(call->function_id)->name, call->process->name, reply.errc);
    } else {
        sim_ledger_spy(sim, call->function_id, request.body, (struct mc_str){body.data, body.len},
                       call->operation);
        sim_ssd_after(sim, call->function_id, call->process);
    }
    answer(sim, call, &body, 0);
    mc_buf_free(&body);
}

/* Whose disk is slow answers late; who loses his power meanwhile, never. */
static void at_the_peer(struct sim *sim, struct call *call) {
    struct sim_node *peer = call->peer;
    struct mc_buf body = {0};
    struct mc_rpc_request request = request_of(sim, call);
    struct mc_rpc_reply reply = {.body = &body};
    SIM_COUNT(sim, peer_calls);
    mc_offload_serve(peer->offload, &request, &reply);
    mc_arena_reset(&sim->master_arena);
    uint64_t busy = sim_disk_busy_ns(peer->disk) * sim->profile.disk_slowness;
    if (reply.errc != MC_RPC_OK) {
        sim_fail(sim, "%s refused a request of %s: errc=%d", peer->process.name,
                 call->process->name, reply.errc);
    } else if (peer->up) {
        answer(sim, call, &body, mc_min_u64(busy, SIM_LATE_NS / 2));
    }
    mc_buf_free(&body);
}

static void carry_out(struct sim *sim, struct call *call) {
    if (call->peer == NULL && sim->master != NULL) {
        at_the_master(sim, call);
    } else if (call->peer != NULL && call->peer->up && call->peer->offload != NULL &&
               !cut(sim, &call->peer->process)) {
        at_the_peer(sim, call);
    } else if (sim_odds(sim, 50)) {
        refuse(sim, call);
    }
}

static void request_arrives(struct sim *sim, void *arg, uint64_t word) {
    struct call *call = arg;
    if (!sim->closing && !call->broken) {
        MC_ASSERT(sim->now_ns - call->sent_ns <= SIM_LATE_NS);
        if (!cut(sim, call->process)) {
            carry_out(sim, call);
        } else if (sim_odds(sim, 50)) {
            refuse(sim, call);
        }
    }
    call_unref(call);
}

/* ---- the way there ---- */

static void send_request(struct sim *sim, struct call *call) {
    call->refs++;
    sim_at(sim, sim->now_ns + sim_latency(sim), request_arrives, call, 0);
}

static void send_all(struct sim *sim, struct call *call) {
    if (sim_chance(sim, sim->profile.loss)) {
        SIM_COUNT(sim, requests_lost);
        if (sim_odds(sim, 50)) {
            refuse(sim, call);
        }
    } else {
        send_request(sim, call);
    }
    if (may_be_doubled(call) && sim_chance(sim, sim->profile.doubling)) {
        SIM_COUNT(sim, requests_doubled);
        send_request(sim, call);
    }
}

static enum mc_status call_out(struct sim_process *process, struct sim_node *peer,
                               uint32_t function_id, const char *name, struct mc_str body,
                               uint64_t deadline_ns, struct mc_buf *reply) {
    struct sim *sim = process->sim;
    uint64_t deadline = deadline_ns + process->clock_lag_ns;
    if (process->disk != NULL) { /* first its disk must be through */
        sim_sleep(process, sim_disk_busy_ns(process->disk) * sim->profile.disk_slowness);
    }
    if (process->dead) {
        return MC_RPC_FAIL;
    }
    if (deadline <= sim->now_ns) {
        return MC_RPC_TIMEOUT;
    }
    struct call *call = mc_zalloc(sizeof(*call));
    *call = (struct call){.refs = 1,
                          .process = process,
                          .peer = peer,
                          .serial = process->wait_serial,
                          .operation = process->operation,
                          .function_id = function_id,
                          .sent_ns = sim->now_ns,
                          .status = MC_RPC_TIMEOUT};
    mc_buf_append(&call->request, body.ptr, body.len);
    send_all(sim, call);
    sim_park(process, deadline);
    call->over = true;
    enum mc_status status = process->dead ? MC_RPC_FAIL : call->status;
    if (status == MC_OK) {
        mc_buf_append(reply, call->reply.data, call->reply.len);
    }
    sim_trace(sim, "%s: %s -> %s", process->name, name, mc_status_name(status));
    call_unref(call);
    return status;
}

enum mc_status sim_port_call(struct mc_port *port, uint32_t function_id, struct mc_str body,
                             uint64_t deadline_ns, struct mc_buf *reply) {
    struct sim_process *process = mc_container_of(port, struct sim_process, port);
    return call_out(process, NULL, function_id, mc_master_rpc_find(function_id)->name, body,
                    deadline_ns, reply);
}

enum mc_status sim_port_peer_call(struct mc_port *port, struct mc_str endpoint,
                                  uint32_t function_id, struct mc_str body, uint64_t deadline_ns,
                                  struct mc_buf *reply) {
    struct sim_process *process = mc_container_of(port, struct sim_process, port);
    struct sim *sim = process->sim;
    for (unsigned i = 0; i < SIM_NODES; i++) {
        struct sim_node *node = &sim->nodes[i];
        size_t len = strlen(node->process.name);
        if (endpoint.len > len && endpoint.ptr[len] == ':' &&
            memcmp(endpoint.ptr, node->process.name, len) == 0) {
            return call_out(process, node, function_id, mc_client_rpc_find(function_id)->name, body,
                            deadline_ns, reply);
        }
    }
    sim_fail(sim, "a replica names the endpoint %.*s", (int)endpoint.len, endpoint.ptr);
    return MC_RPC_FAIL;
}
