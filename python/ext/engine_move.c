/*
 * TransferEngine: transfers. A target is a name; its segment is opened at the first call and kept.
 * A call that fails forgets it, so that a peer that came back is found by the next one.
 */
#include <stdlib.h>
#include <string.h>

#include "engine_private.h"

#define FAILED    (-1)
#define TIMED_OUT (-2)

/* ---- what a call wants ---- */

struct wanted {
    const char *target;
    struct mpy_numbers buffers, remotes, lengths;
    enum mc_transfer_op op;
    const char *notify_name, *notify_message;
    PyObject *owners[2]; /* of the notification's texts */
};

static void wanted_free(struct wanted *w) {
    mpy_numbers_free(&w->buffers);
    mpy_numbers_free(&w->remotes);
    mpy_numbers_free(&w->lengths);
    Py_XDECREF(w->owners[0]);
    Py_XDECREF(w->owners[1]);
}

static bool take_notify(PyObject *notify, struct wanted *w) {
    if (notify == NULL || notify == Py_None) {
        return true;
    }
    w->owners[0] = PyObject_GetAttrString(notify, "name");
    w->owners[1] = PyObject_GetAttrString(notify, "msg");
    return w->owners[0] != NULL && w->owners[1] != NULL &&
           mpy_text(w->owners[0], "notify.name", &w->notify_name) &&
           mpy_text(w->owners[1], "notify.msg", &w->notify_message);
}

/* A single number as a list of one. */
static bool one_number(PyObject *object, const char *name, struct mpy_numbers *out) {
    *out = (struct mpy_numbers){.items = mpy_calloc(1, sizeof(*out->items)), .count = 1};
    return out->items != NULL && mpy_u64(object, name, out->items);
}

/* The requests, malloc'ed; NULL without an error when the lists differ in length. */
static struct mc_transfer_request *make_requests(const struct wanted *w, uint64_t *bytes) {
    size_t count = w->buffers.count;
    if (w->remotes.count != count || w->lengths.count != count || count > MC_BATCH_MAX) {
        return NULL;
    }
    struct mc_transfer_request *requests = malloc((count + 1) * sizeof(*requests));
    *bytes = 0;
    for (size_t i = 0; requests != NULL && i < count; i++) {
        requests[i] = (struct mc_transfer_request){.op = w->op,
                                                   .local = (void *)(uintptr_t)w->buffers.items[i],
                                                   .remote_addr = w->remotes.items[i],
                                                   .length = w->lengths.items[i]};
        *bytes += w->lengths.items[i];
    }
    return requests;
}

/* ---- carrying it out; all without the GIL ---- */

static enum mc_status start_batch(struct mc_engine *engine, const struct wanted *w,
                                  const struct mc_transfer_request *requests, size_t count,
                                  mc_segment_id segment, uint64_t deadline, struct mc_batch **out) {
    struct mc_batch *batch;
    MPY_TRY(mc_batch_create(engine, count, &batch));
    enum mc_status status = MC_OK;
    if (w->notify_name != NULL) {
        status = mc_batch_notify(batch, segment, w->notify_name, w->notify_message);
    }
    if (status == MC_OK) {
        status = mc_batch_submit(batch, requests, count, deadline);
    }
    if (status != MC_OK) {
        enum mc_status freed = mc_batch_free(batch); /* nothing was submitted */
        (void)freed;
        return status;
    }
    *out = batch;
    return MC_OK;
}

/* Waits past the tasks' own deadline, after which nothing of them runs. */
static enum mc_status end_batch(struct mc_batch *batch) {
    enum mc_status status = mc_batch_wait(batch, MC_WAIT_FOREVER);
    enum mc_status freed = mc_batch_free(batch);
    return status != MC_OK ? status : freed;
}

static enum mc_status move_now(struct mpy_transfer *self, struct mc_engine *engine,
                               const struct wanted *w, struct mc_transfer_request *requests,
                               uint64_t bytes) {
    mc_segment_id segment;
    MPY_TRY(mpy_transfer_peer(self, engine, w->target, &segment));
    for (size_t i = 0; i < w->buffers.count; i++) {
        requests[i].segment = segment;
    }
    uint64_t deadline = mpy_transfer_deadline(bytes);
    enum mc_status status;
    if (w->notify_name == NULL) {
        status = mc_transfer(engine, requests, w->buffers.count, deadline);
    } else {
        struct mc_batch *batch;
        status = start_batch(engine, w, requests, w->buffers.count, segment, deadline, &batch);
        if (status == MC_OK) {
            status = end_batch(batch);
        }
    }
    if (status != MC_OK) {
        mpy_transfer_forget(self, engine, w->target);
    }
    return status;
}

/* 0 or -1; takes the wanted apart. */
static PyObject *run_now(struct mpy_transfer *self, struct wanted *w) {
    uint64_t bytes = 0;
    enum mc_status status = MC_INVALID_PARAMS;
    struct mc_transfer_request *requests = make_requests(w, &bytes);
    struct mpy_engine *engine = requests != NULL ? mpy_transfer_enter(self) : NULL;
    if (engine != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        status = move_now(self, engine->engine, w, requests, bytes);
        PyEval_RestoreThread(thread);
        mpy_transfer_leave(engine);
    }
    free(requests);
    wanted_free(w);
    return PyLong_FromLong(status == MC_OK ? 0 : FAILED);
}

static enum mc_status submit(struct mpy_transfer *self, struct mc_engine *engine,
                             const struct wanted *w, struct mc_transfer_request *requests,
                             struct mpy_batch *batch, uint64_t bytes) {
    mc_segment_id segment;
    MPY_TRY(mpy_transfer_peer(self, engine, w->target, &segment));
    for (size_t i = 0; i < w->buffers.count; i++) {
        requests[i].segment = segment;
    }
    batch->tasks = w->buffers.count;
    batch->deadline_ns = mpy_transfer_deadline(bytes);
    MPY_TRY(start_batch(engine, w, requests, w->buffers.count, segment, batch->deadline_ns,
                        &batch->batch));
    pthread_mutex_lock(&self->lock);
    batch->id = self->next_batch++;
    batch->next = self->batches;
    self->batches = batch;
    pthread_mutex_unlock(&self->lock);
    return MC_OK;
}

/* The batch's number, or 0; takes the wanted apart. */
static PyObject *run_later(struct mpy_transfer *self, struct wanted *w) {
    uint64_t bytes = 0;
    uint64_t id = 0;
    struct mc_transfer_request *requests = make_requests(w, &bytes);
    struct mpy_batch *batch = calloc(1, sizeof(*batch));
    bool ready = requests != NULL && batch != NULL;
    struct mpy_engine *engine = ready ? mpy_transfer_enter(self) : NULL;
    if (engine != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        enum mc_status status = submit(self, engine->engine, w, requests, batch, bytes);
        if (status == MC_OK) {
            id = batch->id;
            batch = NULL; /* the list's */
        } else {
            mpy_transfer_forget(self, engine->engine, w->target);
        }
        PyEval_RestoreThread(thread);
        mpy_transfer_leave(engine);
    }
    free(batch);
    free(requests);
    wanted_free(w);
    return PyLong_FromUnsignedLongLong(id);
}

/* ---- the calls ---- */

/* Parameters: target, buffer(s), peer address(es), length(s), then what the signature names. */
static PyObject *transfer(PyObject *object, PyObject *const *args, Py_ssize_t count,
                          PyObject *names, const struct mpy_signature *signature, int op,
                          bool later) {
    PyObject *v[MPY_MAX_ARGS];
    struct wanted w = {.target = "",
                       .op = op == MC_TRANSFER_READ ? MC_TRANSFER_READ : MC_TRANSFER_WRITE};
    bool many = strcmp(signature->names[1], "buffers") == 0;
    bool (*take)(PyObject *, const char *, struct mpy_numbers *) = many ? mpy_numbers : one_number;
    int64_t opcode = op;
    if (!mpy_args(signature, args, count, names, v)) {
        return NULL;
    }
    bool ok = mpy_text(v[0], signature->names[0], &w.target) &&
              take(v[1], signature->names[1], &w.buffers) &&
              take(v[2], signature->names[2], &w.remotes) &&
              take(v[3], signature->names[3], &w.lengths);
    for (size_t i = 4; ok && i < signature->count; i++) {
        const char *hint = NULL;
        if (strcmp(signature->names[i], "opcode") == 0) {
            ok = mpy_i64(v[i], "opcode", &opcode);
        } else if (strcmp(signature->names[i], "notify") == 0) {
            ok = take_notify(v[i], &w);
        } else { /* a transport hint: the engine chooses */
            ok = mpy_text(v[i], signature->names[i], &hint);
        }
    }
    if (!ok) {
        wanted_free(&w);
        return NULL;
    }
    if (opcode != MC_TRANSFER_READ && opcode != MC_TRANSFER_WRITE) {
        wanted_free(&w);
        return PyLong_FromLong(later ? 0 : FAILED);
    }
    w.op = opcode == MC_TRANSFER_READ ? MC_TRANSFER_READ : MC_TRANSFER_WRITE;
    struct mpy_transfer *self = (struct mpy_transfer *)object;
    return later ? run_later(self, &w) : run_now(self, &w);
}

static const char *const ONE[] = {"target_hostname", "buffer", "peer_buffer_address", "length",
                                  "transport_hint"};
static const char *const MANY[] = {"target_hostname", "buffers", "peer_buffer_addresses", "lengths",
                                   "transport_hint"};
static const char *const ONE_OP[] = {"target_hostname", "buffer", "peer_buffer_address", "length",
                                     "opcode",          "notify", "transport_hint"};
static const char *const MANY_OP[] = {"target_hostname", "buffers", "peer_buffer_addresses",
                                      "lengths",         "opcode",  "notify",
                                      "transport_hint"};
static const char *const MANY_OP_LATER[] = {"target_hostname", "buffers", "peer_buffer_addresses",
                                            "lengths",         "opcode",  "transport_hint"};

/* One Python method: its C name, parameters, how many are required, direction, later. */
#define TRANSFER(name, NAMES, count_, required, op, later)                                         \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count,                 \
                          PyObject *names) {                                                       \
        static const struct mpy_signature SIGNATURE = {#name, NAMES, count_, required, false};     \
        return transfer(self, args, count, names, &SIGNATURE, op, later);                          \
    }
TRANSFER(transfer_sync_write, ONE, 5, 4, MC_TRANSFER_WRITE, false)
TRANSFER(transfer_sync_read, ONE, 5, 4, MC_TRANSFER_READ, false)
TRANSFER(batch_transfer_sync_write, MANY, 5, 4, MC_TRANSFER_WRITE, false)
TRANSFER(batch_transfer_sync_read, MANY, 5, 4, MC_TRANSFER_READ, false)
TRANSFER(batch_transfer_async_write, MANY, 5, 4, MC_TRANSFER_WRITE, true)
TRANSFER(batch_transfer_async_read, MANY, 5, 4, MC_TRANSFER_READ, true)
TRANSFER(transfer_submit_write, ONE, 5, 4, MC_TRANSFER_WRITE, true)
TRANSFER(transfer_sync, ONE_OP, 7, 5, MC_TRANSFER_READ, false)
TRANSFER(batch_transfer_sync, MANY_OP, 7, 5, MC_TRANSFER_READ, false)
TRANSFER(batch_transfer_async, MANY_OP_LATER, 6, 5, MC_TRANSFER_READ, true)
#undef TRANSFER

/* ---- batches by number ---- */

/* Out of the list; NULL when there is none of this number. */
static struct mpy_batch *take_batch(struct mpy_transfer *self, uint64_t id) {
    struct mpy_batch *found = NULL;
    pthread_mutex_lock(&self->lock);
    for (struct mpy_batch **at = &self->batches; *at != NULL; at = &(*at)->next) {
        if ((*at)->id == id) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&self->lock);
    return found;
}

static PyObject *get_batch_transfer_status(PyObject *object, PyObject *ids) {
    struct mpy_transfer *self = (struct mpy_transfer *)object;
    struct mpy_numbers numbers;
    if (!mpy_numbers(ids, "batch_ids", &numbers)) {
        return NULL;
    }
    struct mpy_engine *engine = mpy_transfer_enter(self);
    long code = engine != NULL ? 0 : FAILED;
    PyThreadState *thread = PyEval_SaveThread();
    for (size_t i = 0; engine != NULL && i < numbers.count; i++) {
        struct mpy_batch *batch = take_batch(self, numbers.items[i]);
        if (batch == NULL || end_batch(batch->batch) != MC_OK) {
            code = FAILED;
        }
        free(batch);
    }
    PyEval_RestoreThread(thread);
    if (engine != NULL) {
        mpy_transfer_leave(engine);
    }
    mpy_numbers_free(&numbers);
    return PyLong_FromLong(code);
}

/* 1 done, 0 running, -1 failed, -2 out of time; but for "running" the batch is freed. */
static long check(struct mpy_transfer *self, uint64_t id) {
    struct mpy_batch *batch = take_batch(self, id);
    if (batch == NULL) {
        return FAILED;
    }
    enum mc_status status = mc_batch_wait(batch->batch, mc_deadline_in_ms(0));
    bool overdue = mc_deadline_in_ms(0) >= batch->deadline_ns;
    if (status == MC_ERR_TIMEOUT && !overdue) {
        pthread_mutex_lock(&self->lock);
        batch->next = self->batches;
        self->batches = batch;
        pthread_mutex_unlock(&self->lock);
        return 0;
    }
    enum mc_status ended = end_batch(batch->batch);
    free(batch);
    return status == MC_OK ? 1 : status == MC_ERR_TIMEOUT && ended != MC_OK ? TIMED_OUT : FAILED;
}

static PyObject *transfer_check_status(PyObject *object, PyObject *number) {
    struct mpy_transfer *self = (struct mpy_transfer *)object;
    uint64_t id = 0;
    if (!mpy_u64(number, "batch_id", &id)) {
        return NULL;
    }
    struct mpy_engine *engine = mpy_transfer_enter(self);
    long code = FAILED;
    if (engine != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        code = check(self, id);
        PyEval_RestoreThread(thread);
        mpy_transfer_leave(engine);
    }
    return PyLong_FromLong(code);
}

#define SYNC(name, parameters, what)                                                               \
    { #name, MPY_METHOD(name), MPY_FAST, #name "($self, " parameters ")\n--\n\n" what }
#define ONE_TEXT    "target_hostname, buffer, peer_buffer_address, length"
#define MANY_TEXT   "target_hostname, buffers, peer_buffer_addresses, lengths"
#define HINT_TEXT   ", transport_hint=''"
#define MOVES       "Moves the bytes and returns when they have arrived: 0, or -1."
#define MOVES_LATER "Starts the transfers: a batch id for get_batch_transfer_status(), or 0."
PyMethodDef mpy_transfer_move_methods[] = {
    SYNC(transfer_sync_write, ONE_TEXT HINT_TEXT, MOVES),
    SYNC(transfer_sync_read, ONE_TEXT HINT_TEXT, MOVES),
    SYNC(batch_transfer_sync_write, MANY_TEXT HINT_TEXT, MOVES),
    SYNC(batch_transfer_sync_read, MANY_TEXT HINT_TEXT, MOVES),
    SYNC(batch_transfer_async_write, MANY_TEXT HINT_TEXT, MOVES_LATER),
    SYNC(batch_transfer_async_read, MANY_TEXT HINT_TEXT, MOVES_LATER),
    SYNC(transfer_submit_write, ONE_TEXT HINT_TEXT,
         "Starts a write: a batch id for transfer_check_status(), or 0."),
    SYNC(transfer_sync, ONE_TEXT ", opcode, notify=None" HINT_TEXT, MOVES),
    SYNC(batch_transfer_sync, MANY_TEXT ", opcode, notify=None" HINT_TEXT, MOVES),
    SYNC(batch_transfer_async, MANY_TEXT ", opcode" HINT_TEXT, MOVES_LATER),
    {"get_batch_transfer_status", get_batch_transfer_status, METH_O,
     "get_batch_transfer_status($self, batch_ids, /)\n--\n\nWaits for the batches: 0 when all "
     "completed, else -1. The ids are used up."},
    {"transfer_check_status", transfer_check_status, METH_O,
     "transfer_check_status($self, batch_id, /)\n--\n\n1 done, 0 running, -1 failed, -2 out of "
     "time. But for 0 the id is used up."},
    {NULL, NULL, 0, NULL}};
