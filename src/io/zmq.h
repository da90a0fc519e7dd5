/*
 * ZeroMQ, loaded when somebody wants it: a process that publishes no events carries neither the
 * library nor what that one needs. The functions are the library's own, zmq_send() is
 * mc_zmq_load()->send; see its manual. Sockets belong to one thread each.
 */
#ifndef MC_IO_ZMQ_H
#define MC_IO_ZMQ_H

#include <zmq.h>

struct mc_zmq {
    void *(*ctx_new)(void);
    int (*ctx_set)(void *context, int option, int value);
    int (*ctx_term)(void *context);
    void *(*socket)(void *context, int type);
    int (*close)(void *socket);
    int (*setsockopt)(void *socket, int option, const void *value, size_t size);
    int (*getsockopt)(void *socket, int option, void *value, size_t *size);
    int (*bind)(void *socket, const char *endpoint);
    int (*connect)(void *socket, const char *endpoint);
    int (*send)(void *socket, const void *bytes, size_t size, int flags);
    int (*msg_init)(zmq_msg_t *msg);
    int (*msg_init_data)(zmq_msg_t *msg, void *bytes, size_t size, zmq_free_fn *give_back,
                         void *hint);
    int (*msg_send)(zmq_msg_t *msg, void *socket, int flags);
    int (*msg_recv)(zmq_msg_t *msg, void *socket, int flags);
    int (*msg_close)(zmq_msg_t *msg);
    void *(*msg_data)(zmq_msg_t *msg);
    size_t (*msg_size)(const zmq_msg_t *msg);
    int (*msg_more)(const zmq_msg_t *msg);
    int (*poll)(zmq_pollitem_t *items, int count, long timeout_ms);
    const char *(*strerror)(int error);
};

/* NULL, with the reason in the log, when the machine does not have it. */
const struct mc_zmq *mc_zmq_load(void);

#endif
