/*
 * What the metadata service knows of this engine: published at the start, after each change of
 * memory, and again when the service has lost it. A service that restarts empty would otherwise
 * hide every engine that registered before; so each engine looks for its own entry every few
 * seconds, prolongs its lease where the service has leases, and puts it back where it is gone. With
 * P2P there is no service and nothing here does anything.
 */
#include <unistd.h>

#include "base/log.h"
#include "te/internal.h"

enum mc_status mc_publish_memory(struct mc_engine *engine) {
    if (mc_meta_is_p2p(engine->meta) ||
        atomic_load_explicit(&engine->withdrawn, memory_order_acquire)) {
        return MC_OK;
    }
    struct mc_buf text = {0};
    pthread_mutex_lock(&engine->publish_lock);
    mc_engine_describe(engine, &text);
    enum mc_status status = mc_meta_publish_descriptor(engine->meta, engine->name,
                                                       (struct mc_str){text.data, text.len});
    pthread_mutex_unlock(&engine->publish_lock);
    mc_buf_free(&text);
    return status;
}

static void put_back(struct mc_engine *engine) {
    enum mc_status status =
        mc_meta_renew(engine->meta, engine->name, engine->host, engine->rpc_port);
    if (status != MC_ERR_NOT_FOUND && status != MC_ERR_EXISTS) {
        return; /* there, or the service does not answer: later */
    }
    /* Another's: perhaps one that came while we could not be reached, and went. */
    status = mc_meta_publish_address(engine->meta, engine->name, engine->host, engine->rpc_port);
    if (status == MC_OK) {
        status = mc_publish_memory(engine);
    }
    if (status == MC_OK) {
        mc_metric_add(&engine->republished, 1);
        mc_info("the metadata service had lost this engine; published again name=%s", engine->name);
    }
}

static void run_look(struct mc_job *job) {
    struct mc_engine *engine = mc_container_of(job, struct mc_engine, publish_job);
    if (!atomic_load_explicit(&engine->closing, memory_order_acquire)) {
        put_back(engine);
    }
    atomic_store_explicit(&engine->publish_busy, false, memory_order_release);
}

static uint64_t next_look(const struct mc_engine *engine) {
    return mc_now_ns(mc_clock_system()) + mc_meta_renew_period_ms(engine->meta) * MC_MS;
}

static void on_timer(struct mc_timer *timer) {
    struct mc_engine *engine = mc_container_of(timer, struct mc_engine, publish_timer);
    if (!atomic_exchange_explicit(&engine->publish_busy, true, memory_order_acq_rel)) {
        mc_workers_submit(engine->workers, &engine->publish_job);
    }
    mc_timer_start(engine->reactors[0], timer, next_look(engine));
}

static void start_timer(void *arg) {
    struct mc_engine *engine = arg;
    mc_timer_start(engine->reactors[0], &engine->publish_timer, next_look(engine));
}

static void stop_timer(void *arg) {
    struct mc_engine *engine = arg;
    mc_timer_stop(engine->reactors[0], &engine->publish_timer);
}

void mc_publish_init(struct mc_engine *engine) {
    pthread_mutex_init(&engine->publish_lock, NULL);
    mc_timer_init(&engine->publish_timer, on_timer);
    engine->publish_job.run = run_look;
    mc_metrics_register(engine->metrics, MC_METRIC_COUNTER, "mooncake_te_republished_total", "",
                        "times that the metadata service had lost this engine",
                        &engine->republished);
}

void mc_publish_destroy(struct mc_engine *engine) {
    pthread_mutex_destroy(&engine->publish_lock);
}

enum mc_status mc_publish_start(struct mc_engine *engine) {
    if (mc_meta_is_p2p(engine->meta)) {
        return MC_OK;
    }
    MC_TRY(mc_meta_publish_address(engine->meta, engine->name, engine->host, engine->rpc_port));
    enum mc_status status = mc_publish_memory(engine);
    if (status != MC_OK) {
        mc_meta_withdraw(engine->meta, engine->name, engine->host, engine->rpc_port);
        return status;
    }
    mc_reactor_call(engine->reactors[0], start_timer, engine);
    return MC_OK;
}

void mc_publish_stop(struct mc_engine *engine) {
    if (mc_meta_is_p2p(engine->meta) ||
        atomic_exchange_explicit(&engine->withdrawn, true, memory_order_acq_rel)) {
        return;
    }
    mc_reactor_call(engine->reactors[0], stop_timer, engine);
    while (atomic_load_explicit(&engine->publish_busy, memory_order_acquire)) {
        usleep(1000); /* a look is under way; it ends within the service's time-outs */
    }
    mc_meta_withdraw(engine->meta, engine->name, engine->host, engine->rpc_port);
}
