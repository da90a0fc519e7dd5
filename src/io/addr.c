/*
 * Addresses: "host:port" in every shape people write, name resolution, and which addresses are this
 * machine's.
 *
 * Invariant: an mc_addr never holds an IPv4-mapped IPv6 address; what a dual-stack socket reports
 * is turned back into IPv4, so that the same peer has one spelling wherever it is logged, compared
 * or published.
 */
#include "io/io.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>

#include "base/log.h"
#include "io/private.h"

/* ---- host:port ---- */

static bool port_parse(struct mc_str text, uint16_t *out) {
    unsigned port = 0;
    if (text.len == 0 || text.len > 5) {
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        if (!isdigit((unsigned char)text.ptr[i])) {
            return false;
        }
        port = port * 10 + (unsigned)(text.ptr[i] - '0');
    }
    if (port == 0 || port > UINT16_MAX) {
        return false;
    }
    *out = (uint16_t)port;
    return true;
}

static bool all_from(struct mc_str text, const char *punctuation) {
    for (size_t i = 0; i < text.len; i++) {
        if (!isalnum((unsigned char)text.ptr[i]) &&
            (text.ptr[i] == '\0' || strchr(punctuation, text.ptr[i]) == NULL)) {
            return false;
        }
    }
    return text.len > 0;
}

/* An IPv6 address with or without "%scope". */
static bool is_ipv6(struct mc_str text) {
    char copy[INET6_ADDRSTRLEN];
    struct in6_addr ignored;
    const char *percent = memchr(text.ptr, '%', text.len);
    size_t len = percent != NULL ? (size_t)(percent - text.ptr) : text.len;
    if (len == 0 || len >= sizeof(copy)) {
        return false;
    }
    memcpy(copy, text.ptr, len);
    copy[len] = '\0';
    if (inet_pton(AF_INET6, copy, &ignored) != 1) {
        return false;
    }
    if (percent == NULL) {
        return true;
    }
    struct mc_str scope = {percent + 1, text.len - len - 1};
    return scope.len < IF_NAMESIZE && all_from(scope, "._-:@");
}

static bool hostport_split(struct mc_str text, struct mc_str *host, struct mc_str *port) {
    const char *end = text.ptr + text.len;
    *port = (struct mc_str){NULL, 0};
    if (text.ptr[0] == '[') {
        const char *close = memchr(text.ptr, ']', text.len);
        if (close == NULL) {
            return false;
        }
        *host = (struct mc_str){text.ptr + 1, (size_t)(close - text.ptr - 1)};
        if (close + 1 != end) {
            *port = (struct mc_str){close + 2, (size_t)(end - close - 2)};
            return is_ipv6(*host) && close[1] == ':';
        }
        return is_ipv6(*host);
    }
    const char *colon = memchr(text.ptr, ':', text.len);
    if (colon == NULL) {
        *host = text;
        return all_from(*host, "-._");
    }
    if (memchr(colon + 1, ':', (size_t)(end - colon - 1)) != NULL) {
        *host = text;
        return is_ipv6(*host);
    }
    *host = (struct mc_str){text.ptr, (size_t)(colon - text.ptr)};
    *port = (struct mc_str){colon + 1, (size_t)(end - colon - 1)};
    return all_from(*host, "-._");
}

enum mc_status mc_hostport_parse(const char *text, struct mc_hostport *out) {
    struct mc_str whole = mc_str_from(text);
    struct mc_str host, port_text;
    uint16_t port = 0;
    if (whole.len == 0 || !hostport_split(whole, &host, &port_text) || host.len >= MC_HOST_MAX) {
        return MC_ERR_BAD_ADDRESS;
    }
    if (port_text.ptr != NULL && !port_parse(port_text, &port)) {
        return MC_ERR_BAD_ADDRESS;
    }
    memset(out->host, 0, sizeof(out->host));
    memcpy(out->host, host.ptr, host.len);
    out->port = port;
    return MC_OK;
}

void mc_hostport_format(const char *host, uint16_t port, char *out, size_t size) {
    bool brackets = strchr(host, ':') != NULL && host[0] != '[';
    snprintf(out, size, brackets ? "[%s]:%u" : "%s:%u", host, (unsigned)port);
}

/* ---- addresses ---- */

static void addr_from_ipv4(struct in_addr ip, in_port_t port_be, struct mc_addr *out) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = port_be, .sin_addr = ip};
    memset(out, 0, sizeof(*out));
    memcpy(&out->storage, &v4, sizeof(v4));
    out->len = sizeof(v4);
}

static void addr_from_ipv6(const struct sockaddr_in6 *v6, struct mc_addr *out) {
    memset(out, 0, sizeof(*out));
    memcpy(&out->storage, v6, sizeof(*v6));
    out->len = sizeof(*v6);
}

bool mc_addr_from_sockaddr(const struct sockaddr *sa, struct mc_addr *out) {
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, sa, sizeof(v4));
        addr_from_ipv4(v4.sin_addr, v4.sin_port, out);
        return true;
    }
    if (sa->sa_family != AF_INET6) {
        return false;
    }
    struct sockaddr_in6 v6;
    memcpy(&v6, sa, sizeof(v6));
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
        struct in_addr ip;
        memcpy(&ip, &v6.sin6_addr.s6_addr[12], sizeof(ip));
        addr_from_ipv4(ip, v6.sin6_port, out);
    } else {
        addr_from_ipv6(&v6, out);
    }
    return true;
}

static bool resolve_numeric(const char *host, uint16_t port, struct mc_addr *out) {
    struct in_addr v4;
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    if (inet_pton(AF_INET, host, &v4) == 1) {
        addr_from_ipv4(v4, htons(port), out);
        return true;
    }
    if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) {
        return mc_addr_from_sockaddr((const struct sockaddr *)&v6, out);
    }
    return false;
}

/* The resolver sorts what it finds by RFC 6724, unreachable addresses last, so the first is the one
 * to take. One exception: where a name means loopback in both families, 127.0.0.1 reaches
 * dual-stack and IPv4-only servers alike. */
static const struct addrinfo *choose(const struct addrinfo *found) {
    const struct sockaddr_in6 *first = (const struct sockaddr_in6 *)found->ai_addr;
    if (found->ai_family != AF_INET6 || !IN6_IS_ADDR_LOOPBACK(&first->sin6_addr)) {
        return found;
    }
    for (const struct addrinfo *other = found->ai_next; other != NULL; other = other->ai_next) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)other->ai_addr;
        if (other->ai_family == AF_INET && ntohl(v4->sin_addr.s_addr) >> 24 == 127) {
            return other;
        }
    }
    return found;
}

enum mc_status mc_addr_resolve(const char *host, uint16_t port, struct mc_addr *out) {
    if (resolve_numeric(host, port, out)) {
        return MC_OK;
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char service[8];
    snprintf(service, sizeof(service), "%u", (unsigned)port);
    hints.ai_flags = AI_NUMERICSERV | (strchr(host, ':') != NULL ? AI_NUMERICHOST : 0);
    int rc = getaddrinfo(host, service, &hints, &found);
    if (rc != 0) {
        mc_warn_limited("cannot resolve a host name: host=%s reason=\"%s\"", host,
                        gai_strerror(rc));
        return MC_ERR_BAD_ADDRESS;
    }
    bool usable = mc_addr_from_sockaddr(choose(found)->ai_addr, out);
    freeaddrinfo(found);
    return usable ? MC_OK : MC_ERR_BAD_ADDRESS;
}

void mc_addr_format(const struct mc_addr *addr, char *out, size_t size) {
    struct mc_addr plain;
    char ip[INET6_ADDRSTRLEN + IF_NAMESIZE + 1];
    if (!mc_addr_from_sockaddr((const struct sockaddr *)&addr->storage, &plain) ||
        getnameinfo((const struct sockaddr *)&plain.storage, plain.len, ip, sizeof(ip), NULL, 0,
                    NI_NUMERICHOST) != 0) {
        snprintf(out, size, "?:0");
        return;
    }
    mc_hostport_format(ip, mc_addr_port(&plain), out, size);
}

uint16_t mc_addr_port(const struct mc_addr *addr) {
    if (addr->storage.ss_family == AF_INET) {
        return ntohs(((const struct sockaddr_in *)&addr->storage)->sin_port);
    }
    if (addr->storage.ss_family == AF_INET6) {
        return ntohs(((const struct sockaddr_in6 *)&addr->storage)->sin6_port);
    }
    return 0;
}

/* ---- this machine ---- */

/* How well an interface address serves to be told to others; 0 = not at all. IPv4 first, because
 * every peer release understands it; link-local IPv6 never, because its scope means nothing
 * elsewhere. */
static int usefulness(const struct ifaddrs *i) {
    if (i->ifa_addr == NULL || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) {
        return 0;
    }
    if (i->ifa_addr->sa_family == AF_INET) {
        return 2;
    }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)i->ifa_addr;
    return i->ifa_addr->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? 1 : 0;
}

void mc_local_ip(char *out, size_t size) {
    const char *asked = getenv("MC_TCP_BIND_ADDRESS");
    snprintf(out, size, "127.0.0.1");
    if (asked != NULL && asked[0] != '\0') {
        snprintf(out, size, "%s", asked);
        return;
    }
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0) {
        return;
    }
    const struct ifaddrs *best = NULL;
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        if (usefulness(i) > (best != NULL ? usefulness(best) : 0)) {
            best = i;
        }
    }
    if (best != NULL) {
        socklen_t len = best->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                             : sizeof(struct sockaddr_in6);
        char ip[INET6_ADDRSTRLEN];
        if (getnameinfo(best->ifa_addr, len, ip, sizeof(ip), NULL, 0, NI_NUMERICHOST) == 0) {
            snprintf(out, size, "%s", ip);
        }
    }
    freeifaddrs(list);
}
