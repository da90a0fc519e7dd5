/*
 * The network between processes and the master.
 *
 * A call is a request that travels, is carried out when it arrives, and an answer that travels
 * back; each may be late, lost or doubled, and so they overtake each other. The call itself is a
 * counted object that the messages refer to: an answer that arrives after the caller has gone
 * finds that it is over and is dropped. As the port promises, a call that ended with MC_RPC_FAIL
 * (the connection broke) is not carried out later; one that ended with MC_RPC_TIMEOUT may be.
 */
#include "sim/sim.h"

struct call {
    unsigned refs;
    struct sim_process *process;
    uint64_t serial; /* of the caller's park */
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
static bool may_be_doubled(uint32_t function_id) {
    switch (mc_master_rpc_index(mc_master_rpc_find(function_id))) {
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
    struct answer *answer = arg;
    struct call *call = answer->call;
    if (!sim->closing && !call->over && !cut(sim, call->process)) {
        call->reply = answer->body;
        answer->body = (struct mc_buf){0};
        finish(sim, call, MC_OK);
    } else if (!sim->closing) {
        SIM_COUNT(sim, answers_late);
    }
    mc_buf_free(&answer->body);
    free(answer);
    call_unref(call);
}

static void send_answer(struct sim *sim, struct call *call, const struct mc_buf *body) {
    struct answer *answer = mc_zalloc(sizeof(*answer));
    answer->call = call;
    call->refs++;
    mc_buf_append(&answer->body, body->data, body->len);
    sim_at(sim, sim->now_ns + sim_latency(sim), answer_arrives, answer, 0);
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

/* ---- at the master ---- */

static void carry_out(struct sim *sim, struct call *call) {
    struct mc_str body = {call->request.data, call->request.len};
    struct mc_buf reply_body = {0};
    struct mc_rpc_request request = {.function_id = call->function_id,
                                     .body = body,
                                     .arena = &sim->master_arena,
                                     .peer = "sim:1",
                                     .peer_words = sim->peer_words};
    struct mc_rpc_reply reply = {.body = &reply_body};
    SIM_COUNT(sim, requests);
    if (call->over) {
        SIM_COUNT(sim, requests_late);
    }
    mc_master_serve(sim->master, &request, &reply);
    mc_arena_reset(&sim->master_arena);
    sim_note(sim, mc_hash64(reply_body.data, reply_body.len, call->function_id));
    if (reply.errc != MC_RPC_OK) {
        sim_fail(sim, "the master refused %s of %s: errc=%d",
                 mc_master_rpc_find(call->function_id)->name, call->process->name, reply.errc);
    } else {
        sim_ledger_spy(sim, call->function_id, body,
                       (struct mc_str){reply_body.data, reply_body.len}, call->operation);
    }
    if (sim_chance(sim, sim->profile.loss)) {
        SIM_COUNT(sim, answers_lost);
        if (sim_odds(sim, 50)) {
            refuse(sim, call);
        }
    } else {
        send_answer(sim, call, &reply_body);
    }
    if (sim_chance(sim, sim->profile.doubling)) {
        send_answer(sim, call, &reply_body);
    }
    mc_buf_free(&reply_body);
}

static void request_arrives(struct sim *sim, void *arg, uint64_t word) {
    struct call *call = arg;
    if (!sim->closing && !call->broken) {
        MC_ASSERT(sim->now_ns - call->sent_ns <= SIM_LATE_NS);
        if (sim->master != NULL && !cut(sim, call->process)) {
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
    if (may_be_doubled(call->function_id) && sim_chance(sim, sim->profile.doubling)) {
        SIM_COUNT(sim, requests_doubled);
        send_request(sim, call);
    }
}

enum mc_status sim_port_call(struct mc_port *port, uint32_t function_id, struct mc_str body,
                             uint64_t deadline_ns, struct mc_buf *reply) {
    struct sim_process *process = mc_container_of(port, struct sim_process, port);
    struct sim *sim = process->sim;
    uint64_t deadline = deadline_ns + process->clock_lag_ns;
    if (process->dead) {
        return MC_RPC_FAIL;
    }
    if (deadline <= sim->now_ns) {
        return MC_RPC_TIMEOUT;
    }
    struct call *call = mc_zalloc(sizeof(*call));
    *call = (struct call){.refs = 1,
                          .process = process,
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
    sim_trace(sim, "%s: %s -> %s", process->name, mc_master_rpc_find(function_id)->name,
              mc_status_name(status));
    call_unref(call);
    return status;
}
