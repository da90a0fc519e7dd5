/*
 * A live server under mutated frames: wrong magic, version, lengths, hashes and counts, frames that
 * end early, in pieces, with the connection closed or reset. It answers or closes; every answer is
 * a whole frame in order, those before the first spoilt byte are right; other connections keep
 * working; and in the end no connection is left. MC_TEST_THREADS
 */
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "unit/rpc/rpc_support.h"
#include "unit/wire/peer_samples.h"
#include "wire/master_rpc.h"

#define ROUNDS       1500
#define FRAMES       4
#define ANSWER_LIMIT (1u << 20)
#define MAX_BODY     65536

/* Decodes as a master does, and echoes what it understood. */
static void decoding_handler(void *ctx, const struct mc_rpc_request *request,
                             struct mc_rpc_reply *reply) {
    const struct mc_rpc_desc *rpc = mc_master_rpc_find(request->function_id);
    _Alignas(16) char args[512];
    unsigned version;
    if (rpc == NULL) {
        test_handler(ctx, request, reply);
    } else if (mc_master_rpc_decode_args(rpc, request->body, request->arena, args, &version) !=
               MC_OK) {
        reply->errc = MC_RPC_INVALID_ARGUMENTS;
    } else {
        mc_master_rpc_encode_args(rpc, version, args, reply->body);
    }
}

static size_t sample_frame(struct mc_rng *rng, uint32_t seq, struct mc_buf *out) {
    const struct peer_sample *sample;
    do {
        sample = &PEER_SAMPLES[mc_rng_below(rng, MC_ARRAY_LEN(PEER_SAMPLES))];
    } while (sample->answer);
    struct mc_rpc_request_header h = test_header(seq, 0, (uint32_t)strlen(sample->hex) / 2);
    const struct mc_rpc_desc *table = mc_master_rpc_table();
    for (size_t i = 0; i < MC_MASTER_RPC_COUNT; i++) {
        if (strcmp(table[i].name, sample->rpc) == 0) {
            h.function_id = table[i].function_id;
        }
    }
    size_t start = out->len;
    mc_buf_append(out, &h, sizeof(h));
    for (const char *hex = sample->hex; *hex; hex += 2) {
        unsigned byte;
        assert_int_equal(sscanf(hex, "%2x", &byte), 1);
        mc_buf_putc(out, (char)byte);
    }
    return out->len - start;
}

/* Spoils the bytes from `first` on; returns the first byte that changed. */
static size_t spoil(struct mc_rng *rng, struct mc_buf *bytes, size_t frame_start,
                    size_t frame_len) {
    static const uint32_t telling[] = {0,     1,     19,       20,       255,       65535,
                                       65536, 65537, 1u << 20, 1u << 31, UINT32_MAX};
    size_t header = sizeof(struct mc_rpc_request_header), at;
    switch (mc_rng_below(rng, 5)) {
    case 0: /* any byte of the header */
        at = frame_start + mc_rng_below(rng, header);
        bytes->data[at] ^= (char)(1 + mc_rng_below(rng, 255));
        return at;
    case 1: /* length or attach_length */
        at = frame_start + (mc_rng_below(rng, 2)
                                ? offsetof(struct mc_rpc_request_header, length)
                                : offsetof(struct mc_rpc_request_header, attach_length));
        memcpy(bytes->data + at, &telling[mc_rng_below(rng, MC_ARRAY_LEN(telling))], 4);
        return at;
    case 2: /* any byte of the body: the frame stays whole */
        at = frame_start + header + mc_rng_below(rng, frame_len - header);
        bytes->data[at] = (char)mc_rng_next(rng);
        return at;
    case 3: /* cut off */
        bytes->len = frame_start + mc_rng_below(rng, frame_len);
        return bytes->len;
    default: /* noise instead of the rest */
        at = frame_start + mc_rng_below(rng, frame_len);
        for (size_t i = at; i < bytes->len; i++) {
            bytes->data[i] = (char)mc_rng_next(rng);
        }
        return at;
    }
}

static void send_in_pieces(struct mc_rng *rng, int fd, const struct mc_buf *bytes) {
    for (size_t at = 0; at < bytes->len;) {
        size_t piece = 1 + mc_rng_below(rng, bytes->len - at);
        if (test_send(fd, bytes->data + at, piece) != MC_OK) {
            return; /* closed on a spoilt frame */
        }
        at += piece;
        if (mc_rng_below(rng, 8) == 0) {
            usleep(100);
        }
    }
}

/* Reads answers until the server closes. The first `sound` of them must be there and be right. */
static void read_answers(int fd, uint32_t sound) {
    struct mc_rpc_reply_header h;
    uint32_t count = 0;
    for (;; count++) {
        enum mc_status status = mc_recv_all(fd, &h, sizeof(h), test_deadline());
        if (status != MC_OK) {
            assert_int_equal(status, MC_ERR_CLOSED);
            break;
        }
        assert_int_equal(h.magic, MC_RPC_MAGIC);
        assert_in_range(h.length, 0, ANSWER_LIMIT);
        assert_in_range(h.attach_length, 0, ANSWER_LIMIT);
        if (count < sound) {
            assert_int_equal(h.seq, count);
            assert_int_equal(h.errc, MC_RPC_OK);
        }
        char *body = mc_alloc((size_t)h.length + h.attach_length + 1);
        assert_ok(mc_recv_all(fd, body, (size_t)h.length + h.attach_length, test_deadline()));
        free(body);
    }
    assert_true(count >= sound);
}

static void attack(struct mc_rng *rng, const struct test_server *s) {
    struct mc_buf bytes = {0};
    size_t starts[FRAMES], lengths[FRAMES];
    uint32_t frames = 1 + (uint32_t)mc_rng_below(rng, FRAMES), sound = 0;
    for (uint32_t i = 0; i < frames; i++) {
        starts[i] = bytes.len;
        lengths[i] = sample_frame(rng, i, &bytes);
    }
    size_t victim = mc_rng_below(rng, frames);
    size_t spoilt_at = spoil(rng, &bytes, starts[victim], lengths[victim]);
    while (sound < frames && starts[sound] + lengths[sound] <= spoilt_at) {
        sound++;
    }
    int fd = test_socket(s);
    send_in_pieces(rng, fd, &bytes);
    if (mc_rng_below(rng, 4) == 0) { /* gone without reading; sometimes with a reset */
        struct linger reset = {.l_onoff = 1};
        if (mc_rng_below(rng, 2)) {
            assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
        }
    } else {
        shutdown(fd, SHUT_WR); /* so that a server that waits for more sees the end */
        read_answers(fd, sound);
    }
    close(fd);
    mc_buf_free(&bytes);
}

static bool metrics_say(struct mc_metrics *metrics, const char *line) {
    struct mc_buf text = {0};
    mc_metrics_print(metrics, &text);
    bool found = strstr(mc_buf_cstr(&text), line) != NULL;
    mc_buf_free(&text);
    return found;
}

static void test_mutated_frames_on_a_live_server(void **state) {
    struct mc_rng rng;
    struct mc_metrics *metrics = mc_metrics_create();
    struct mc_rpc_server_config config = {.host = "127.0.0.1",
                                          .threads = 2,
                                          .no_delay = true,
                                          .max_body_bytes = MAX_BODY,
                                          .handler = decoding_handler,
                                          .metrics = metrics};
    struct test_server s;
    assert_ok(mc_rpc_server_start(&config, &s.server, &s.port));
    snprintf(s.address, sizeof(s.address), "127.0.0.1:%u", s.port);
    struct mc_rpc_client *bystander = test_client(&s, 1);
    mc_rng_seed(&rng, 7);
    for (size_t i = 0; i < ROUNDS; i++) {
        attack(&rng, &s);
        test_echo(bystander, 1 + i % 3000, i);
    }
    bool none_left = false;
    for (int i = 0; i < 1000 && !none_left;
         i++) { /* the server sees the last ends a moment later */
        none_left = metrics_say(metrics, "\nmc_rpc_connections 1\n");
        usleep(5000);
    }
    assert_true(none_left);
    assert_false(metrics_say(metrics, "\nmc_rpc_bad_frames 0\n"));
    assert_false(metrics_say(metrics, "\nmc_rpc_errors 0\n"));
    mc_rpc_client_destroy(bystander);
    mc_rpc_server_stop(s.server);
    mc_metrics_destroy(metrics);
}

/* The client under a server that answers nonsense: an error, never a crash, a hang or another
 * call's bytes. */
struct liar {
    int listener;
    uint64_t seed;
};

static void *lie(void *arg) {
    struct liar *liar = arg;
    struct mc_rng rng;
    struct mc_addr peer;
    int fd;
    mc_rng_seed(&rng, liar->seed);
    while (mc_wait_ready(liar->listener, POLLIN, test_deadline()) == MC_OK &&
           mc_accept(liar->listener, &fd, &peer) == MC_OK) {
        struct mc_rpc_request_header request;
        if (mc_recv_all(fd, &request, sizeof(request), test_deadline()) == MC_OK) {
            char body[64];
            size_t body_len = request.length < sizeof(body) ? request.length : sizeof(body);
            struct mc_buf answer = {0};
            struct mc_rpc_reply_header h = {
                .magic = MC_RPC_MAGIC, .seq = request.seq, .length = (uint32_t)body_len};
            bool honest = mc_rng_below(&rng, 3) == 0;
            if (mc_recv_all(fd, body, body_len, test_deadline()) == MC_OK) {
                mc_buf_append(&answer, &h, sizeof(h));
                mc_buf_append(&answer, body, body_len);
                if (!honest) {
                    static const uint32_t lengths[] = {0,         1, 100, 1u << 28, (1u << 28) + 1,
                                                       UINT32_MAX};
                    size_t at = mc_rng_below(&rng, sizeof(h));
                    answer.data[at] ^= (char)(1 + mc_rng_below(&rng, 255));
                    if (mc_rng_below(&rng, 2)) {
                        memcpy(answer.data + 8, &lengths[mc_rng_below(&rng, MC_ARRAY_LEN(lengths))],
                               4);
                    }
                    answer.len = mc_rng_below(&rng, answer.len + 1);
                }
                if (test_send(fd, answer.data, answer.len) != MC_OK) {
                    fail_msg("the client does not read");
                }
            }
            mc_buf_free(&answer);
        }
        close(fd);
    }
    return NULL;
}

static void test_a_server_that_lies(void **state) {
    struct liar liar = {.seed = 11};
    uint16_t port;
    char address[32];
    pthread_t thread;
    struct mc_rpc_client *client;
    size_t good = 0, bad = 0;
    assert_ok(mc_listen("127.0.0.1", 0, 16, &liar.listener, &port));
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    assert_ok(mc_rpc_client_create(address, 1, 5000, &client));
    assert_int_equal(pthread_create(&thread, NULL, lie, &liar), 0);
    for (size_t i = 0; i < 2000; i++) {
        struct mc_buf reply = {0};
        char body[32];
        mc_test_fill(body, sizeof(body), i);
        struct mc_str view = {body, sizeof(body)};
        enum mc_status status =
            i % 2 ? mc_rpc_call(client, FN_ECHO, view, test_deadline(), &reply, NULL)
                  : mc_rpc_call_many(client, FN_ECHO, &view, 1, test_deadline(), &reply);
        if (status == MC_OK) {
            good++;
        } else {
            bad++;
            assert_int_equal(status, MC_RPC_FAIL);
            assert_int_equal(reply.len, 0);
        }
        mc_buf_free(&reply);
    }
    assert_true(good > 100 && bad > 100);
    mc_rpc_client_destroy(client);
    shutdown(liar.listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(liar.listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mutated_frames_on_a_live_server),
        cmocka_unit_test(test_a_server_that_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
