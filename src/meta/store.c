/*
 * The way to peers: P2P or a key-value service, and the layout of keys in the latter.
 *
 * mooncake/[<cluster>/]ram/<name> holds the descriptor (a name with a slash in it is the key
 * itself, behind the prefix); mooncake/[<cluster>/]rpc_meta/<name> holds {"ip_or_host_name",
 * "rpc_port"}. The address entry is what makes a name taken: it is written only where there is none
 * (claim), and one that a dead engine left is replaced only after that engine failed to answer a
 * probe, and only if it is still the same.
 */
#include <jansson.h>
#include <stdio.h>

#include "base/env.h"
#include "base/log.h"
#include "io/io.h"
#include "meta/endpoints.h"
#include "meta/meta.h"

#define KEY_MAX             640
#define PROBE_TIMEOUT_MS    5000 /* a busy engine must not lose its name */
#define LEASE_DEFAULT_S     30
#define RENEW_PERIOD_MAX_MS 5000

static const struct mc_meta_kv_ops *const kv_table[] = {&mc_meta_http_ops, &mc_meta_etcd_ops,
                                                        &mc_meta_redis_ops};

struct mc_meta {
    struct mc_handshake_limits limits;
    char prefix[128];
    uint32_t lease_s;
    struct mc_meta_kv *kv; /* NULL = P2P */
};

/* Whose connection string this is, or NULL. host:port without a scheme is etcd. */
static const struct mc_meta_kv_ops *find_ops(const char *connection) {
    struct mc_meta_endpoints endpoints;
    for (size_t i = 0; i < MC_ARRAY_LEN(kv_table); i++) {
        for (const char *const *scheme = kv_table[i]->schemes; *scheme != NULL; scheme++) {
            if (strncmp(connection, *scheme, strlen(*scheme)) == 0) {
                return kv_table[i];
            }
        }
    }
    bool bare = strstr(connection, "://") == NULL &&
                mc_meta_endpoints_parse(connection, 0, &endpoints) == MC_OK;
    return bare ? &mc_meta_etcd_ops : NULL;
}

enum mc_status mc_meta_open(const char *connection, const struct mc_handshake_limits *limits,
                            struct mc_meta **out) {
    struct mc_meta *meta = mc_zalloc(sizeof(*meta));
    const char *cluster = getenv("MC_METADATA_CLUSTER_ID");
    bool has_cluster = cluster != NULL && cluster[0] != '\0';
    enum mc_status status = MC_NOT_SUPPORTED;
    meta->limits = *limits;
    int len = snprintf(meta->prefix, sizeof(meta->prefix), "mooncake/%s%s",
                       has_cluster ? cluster : "", has_cluster ? "/" : "");
    if (len >= (int)sizeof(meta->prefix)) {
        mc_error("MC_METADATA_CLUSTER_ID is too long");
        status = MC_INVALID_PARAMS;
        goto fail;
    }
    if (strcmp(connection, "P2PHANDSHAKE") == 0) {
        *out = meta;
        return MC_OK;
    }
    const struct mc_meta_kv_ops *ops = find_ops(connection);
    if (ops == NULL) {
        mc_error("metadata service not supported connection=\"%s\" supported=\"P2PHANDSHAKE, "
                 "http[s]://host:port/metadata, etcd[s]://host:port[,...], "
                 "redis[s]://host:port[,...]\"",
                 connection);
        goto fail;
    }
    meta->lease_s = (uint32_t)mc_env_u64("MC_METADATA_LEASE_SECONDS", 2, 86400, LEASE_DEFAULT_S);
    status = ops->open(connection, meta->lease_s, &meta->kv);
    if (status != MC_OK) {
        goto fail;
    }
    *out = meta;
    return MC_OK;
fail:
    free(meta);
    return status;
}

void mc_meta_close(struct mc_meta *meta) {
    if (meta == NULL) {
        return;
    }
    if (meta->kv != NULL) {
        meta->kv->ops->close(meta->kv);
    }
    free(meta);
}

bool mc_meta_is_p2p(const struct mc_meta *meta) {
    return meta->kv == NULL;
}

const struct mc_handshake_limits *mc_meta_limits(const struct mc_meta *meta) {
    return &meta->limits;
}

/* ---- keys and values ---- */

static void descriptor_key(const struct mc_meta *meta, const char *name, char key[KEY_MAX]) {
    snprintf(key, KEY_MAX, "%s%s%s", meta->prefix, strchr(name, '/') ? "" : "ram/", name);
}

static void address_key(const struct mc_meta *meta, const char *name, char key[KEY_MAX]) {
    snprintf(key, KEY_MAX, "%srpc_meta/%s", meta->prefix, name);
}

static enum mc_status parse_address(struct mc_str text, char host[256], uint16_t *port) {
    json_t *json = json_loadb(text.ptr ? text.ptr : "", text.len, 0, NULL);
    const json_t *host_json = json_object_get(json, "ip_or_host_name");
    const json_t *port_json = json_object_get(json, "rpc_port");
    enum mc_status status = MC_ERR_PROTOCOL;
    if (json_is_string(host_json) && json_string_length(host_json) < 256 &&
        json_string_length(host_json) > 0 && json_is_integer(port_json) &&
        json_integer_value(port_json) > 0 && json_integer_value(port_json) <= UINT16_MAX) {
        memcpy(host, json_string_value(host_json), json_string_length(host_json) + 1);
        *port = (uint16_t)json_integer_value(port_json);
        status = MC_OK;
    }
    json_decref(json);
    return status;
}

static enum mc_status get_address(struct mc_meta *meta, const char *name, char host[256],
                                  uint16_t *port) {
    char key[KEY_MAX];
    struct mc_buf value = {0};
    address_key(meta, name, key);
    enum mc_status status = meta->kv->ops->get(meta->kv, key, &value);
    if (status == MC_OK) {
        status = parse_address((struct mc_str){value.data, value.len}, host, port);
    }
    mc_buf_free(&value);
    return status;
}

void mc_meta_value_line(struct mc_buf *out, struct mc_str value) {
    mc_buf_append(out, value.ptr, value.len);
    mc_buf_putc(out, '\n');
}

/* Equal but for the newlines behind what a service holds. */
static bool trimmed_eq(struct mc_str held, struct mc_str ours) {
    while (held.len > 0 && held.ptr[held.len - 1] == '\n') {
        held.len--;
    }
    return mc_str_eq(held, ours);
}

/* ---- publishing ---- */

static char *address_text(const char *host, uint16_t port) {
    json_t *json = json_pack("{s:s, s:i}", "ip_or_host_name", host, "rpc_port", (int)port);
    char *text = json == NULL ? NULL : json_dumps(json, JSON_COMPACT);
    json_decref(json);
    return text;
}

/* The service holds another address under our name: ours if nobody answers there. */
static enum mc_status take_over_address(struct mc_meta *meta, const char *name, const char *key,
                                        struct mc_str value) {
    char host[256];
    uint16_t port = 0;
    struct mc_buf held = {0};
    enum mc_status status = meta->kv->ops->get(meta->kv, key, &held);
    struct mc_str old = {held.data, held.len};
    if (status == MC_ERR_NOT_FOUND) { /* gone meanwhile */
        old = (struct mc_str){NULL, 0};
    } else if (status != MC_OK || trimmed_eq(old, value)) {
        goto out;
    } else if (parse_address(old, host, &port) == MC_OK) {
        uint64_t deadline = mc_now_ns(mc_clock_system()) + PROBE_TIMEOUT_MS * MC_MS;
        if (mc_handshake_probe(host, port, &meta->limits, deadline) == MC_OK) {
            mc_error("the segment name is taken name=%s by=%s:%u", name, host, (unsigned)port);
            status = MC_ERR_EXISTS;
            goto out;
        }
        mc_info("replacing the address of an engine that does not answer name=%s was=%s:%u", name,
                host, (unsigned)port);
    }
    status = meta->kv->ops->claim(meta->kv, key, old, value);
    if (status == MC_ERR_EXISTS) {
        mc_error("the segment name was taken by another engine at the same time name=%s", name);
    }
out:
    mc_buf_free(&held);
    return status;
}

enum mc_status mc_meta_publish_address(struct mc_meta *meta, const char *name, const char *host,
                                       uint16_t port) {
    if (meta->kv == NULL) {
        return MC_OK;
    }
    char key[KEY_MAX];
    address_key(meta, name, key);
    char *text = address_text(host, port);
    if (text == NULL) {
        return MC_INVALID_PARAMS;
    }
    enum mc_status status =
        meta->kv->ops->claim(meta->kv, key, (struct mc_str){NULL, 0}, mc_str_from(text));
    if (status == MC_ERR_EXISTS) {
        status = take_over_address(meta, name, key, mc_str_from(text));
    }
    free(text);
    return status;
}

static enum mc_status publish(struct mc_meta *meta, const char *name, struct mc_str descriptor,
                              bool leased) {
    if (meta->kv == NULL) {
        return MC_OK;
    }
    char key[KEY_MAX];
    descriptor_key(meta, name, key);
    return meta->kv->ops->put(meta->kv, key, descriptor, leased);
}

enum mc_status mc_meta_publish_descriptor(struct mc_meta *meta, const char *name,
                                          struct mc_str descriptor) {
    return publish(meta, name, descriptor, true);
}

enum mc_status mc_meta_publish_lasting(struct mc_meta *meta, const char *name,
                                       struct mc_str descriptor) {
    return publish(meta, name, descriptor, false);
}

/* Is the address under this name ours? MC_ERR_EXISTS when it is another's. */
static enum mc_status check_address(struct mc_meta *meta, const char *name, const char *host,
                                    uint16_t port) {
    char held_host[256];
    uint16_t held_port;
    MC_TRY(get_address(meta, name, held_host, &held_port));
    return held_port == port && strcmp(held_host, host) == 0 ? MC_OK : MC_ERR_EXISTS;
}

uint32_t mc_meta_renew_period_ms(const struct mc_meta *meta) {
    return (uint32_t)mc_min_u64(RENEW_PERIOD_MAX_MS, meta->lease_s * 1000ull / 3);
}

enum mc_status mc_meta_renew(struct mc_meta *meta, const char *name, const char *host,
                             uint16_t port) {
    if (meta->kv == NULL) {
        return MC_OK;
    }
    char address[KEY_MAX], descriptor[KEY_MAX];
    const char *const keys[] = {address, descriptor};
    struct mc_buf value = {0};
    address_key(meta, name, address);
    descriptor_key(meta, name, descriptor);
    /* First whose it is: another engine's record is not to be kept alive. */
    MC_TRY(check_address(meta, name, host, port));
    if (meta->kv->ops->renew != NULL) {
        MC_TRY(meta->kv->ops->renew(meta->kv, keys, MC_ARRAY_LEN(keys)));
    }
    enum mc_status status = meta->kv->ops->get(meta->kv, descriptor, &value);
    mc_buf_free(&value);
    return status;
}

static void withdraw_key(struct mc_meta *meta, const char *key) {
    enum mc_status status = meta->kv->ops->remove(meta->kv, key);
    if (status != MC_OK && status != MC_ERR_NOT_FOUND) {
        mc_warn("metadata entry stays behind key=%s status=%s", key, mc_status_name(status));
    }
}

void mc_meta_withdraw(struct mc_meta *meta, const char *name, const char *host, uint16_t port) {
    if (meta->kv == NULL) {
        return;
    }
    char key[KEY_MAX];
    enum mc_status status = check_address(meta, name, host, port);
    if (status != MC_OK && status != MC_ERR_NOT_FOUND) {
        mc_warn("metadata entries are not removed name=%s status=%s", name, mc_status_name(status));
        return;
    }
    mc_meta_withdraw_lasting(meta, name);
    if (status == MC_OK) {
        address_key(meta, name, key);
        withdraw_key(meta, key);
    }
}

void mc_meta_withdraw_lasting(struct mc_meta *meta, const char *name) {
    char key[KEY_MAX];
    if (meta->kv != NULL) {
        descriptor_key(meta, name, key);
        withdraw_key(meta, key);
    }
}

/* ---- finding ---- */

static enum mc_status lookup_kv(struct mc_meta *meta, const char *name, struct mc_meta_peer *peer) {
    char key[KEY_MAX];
    MC_TRY(get_address(meta, name, peer->host, &peer->rpc_port));
    descriptor_key(meta, name, key);
    return meta->kv->ops->get(meta->kv, key, &peer->descriptor);
}

static enum mc_status lookup_p2p(struct mc_meta *meta, const char *name,
                                 struct mc_str own_descriptor, uint64_t deadline_ns,
                                 struct mc_meta_peer *peer) {
    struct mc_hostport hostport;
    MC_TRY(mc_hostport_parse(name, &hostport));
    if (hostport.port == 0) {
        return MC_ERR_BAD_ADDRESS;
    }
    snprintf(peer->host, sizeof(peer->host), "%s", hostport.host);
    peer->rpc_port = hostport.port;
    return mc_handshake_metadata(peer->host, peer->rpc_port, own_descriptor, &meta->limits,
                                 deadline_ns, &peer->descriptor);
}

enum mc_status mc_meta_get_descriptor(struct mc_meta *meta, const char *name, struct mc_buf *out) {
    char key[KEY_MAX];
    if (meta->kv == NULL) {
        return MC_NOT_SUPPORTED;
    }
    descriptor_key(meta, name, key);
    enum mc_status status = meta->kv->ops->get(meta->kv, key, out);
    return status == MC_ERR_NOT_FOUND ? MC_SEGMENT_NOT_FOUND : status;
}

enum mc_status mc_meta_lookup(struct mc_meta *meta, const char *name, struct mc_str own_descriptor,
                              uint64_t deadline_ns, struct mc_meta_peer *out) {
    struct mc_meta_peer peer = {0};
    enum mc_status status = meta->kv != NULL
                                ? lookup_kv(meta, name, &peer)
                                : lookup_p2p(meta, name, own_descriptor, deadline_ns, &peer);
    if (status == MC_ERR_NOT_FOUND) {
        status = MC_SEGMENT_NOT_FOUND;
    }
    if (status != MC_OK) {
        mc_buf_free(&peer.descriptor);
        return status;
    }
    *out = peer;
    return MC_OK;
}
