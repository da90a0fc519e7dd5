/*
 * Threads for jobs that wait for peers: descriptor refreshes, notifications. Reactors and
 * submitters never wait; they leave such a job here. The first thread is started with the engine,
 * so that there is always one to run a job; others when a job finds none idle. All stay until the
 * engine ends.
 */
#include "base/log.h"
#include "base/thread.h"
#include "te/internal.h"

struct mc_workers {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct mc_job *head;
    struct mc_job **tail;
    size_t queued;
    unsigned idle;
    unsigned count;
    bool stop;
    pthread_t threads[MC_WORKERS_MAX];
};

static void *work(void *arg) {
    struct mc_workers *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        if (w->head == NULL) {
            if (w->stop) {
                break;
            }
            w->idle++;
            pthread_cond_wait(&w->wake, &w->lock);
            w->idle--;
            continue;
        }
        struct mc_job *job = w->head;
        w->head = job->next;
        if (w->head == NULL) {
            w->tail = &w->head;
        }
        w->queued--;
        pthread_mutex_unlock(&w->lock);
        job->run(job); /* may free or queue the job again */
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static int add_thread(struct mc_workers *w) {
    int error = mc_thread_start(&w->threads[w->count], "mc-te-job", work, w);
    w->count += error == 0;
    return error;
}

enum mc_status mc_workers_create(struct mc_workers **out) {
    struct mc_workers *w = mc_zalloc(sizeof(*w));
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->tail = &w->head;
    int error = add_thread(w);
    if (error != 0) {
        mc_error("the engine's worker thread cannot be started errno=%d", error);
        mc_workers_destroy(w);
        return MC_ERR_LIMIT;
    }
    *out = w;
    return MC_OK;
}

void mc_workers_submit(struct mc_workers *w, struct mc_job *job) {
    pthread_mutex_lock(&w->lock);
    job->next = NULL;
    *w->tail = job;
    w->tail = &job->next;
    w->queued++;
    /* While stopping only workers queue jobs, and each looks at the queue before it ends. */
    if (!w->stop && w->idle < w->queued && w->count < MC_WORKERS_MAX) {
        (void)add_thread(w); /* else the job waits for a busy one */
    }
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void mc_workers_destroy(struct mc_workers *w) {
    if (w == NULL) {
        return;
    }
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->count; i++) {
        pthread_join(w->threads[i], NULL);
    }
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w);
}
