/*
 * The file of tenant quotas, in upstream's YAML: a version, which is 1, and a list of names with a
 * quota each. It is written whole, to another name first, so that a crash leaves the old one or the
 * new one.
 */
#include "master/core.h"
#include "master/tenants.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>
#include <yaml.h>

#include "base/log.h"

#define FILE_MAX  (64u << 20)
#define DEPTH_MAX 8 /* of what is to be read; 3 are understood */

struct reader {
    const char *path;
    yaml_document_t document;
    struct mc_tenant_policy *all;
    size_t count;
};

static enum mc_status wrong(const struct reader *r, const yaml_node_t *node, const char *what) {
    mc_error("tenant quotas: %s file=%s line=%zu", what, r->path,
             node ? node->start_mark.line + 1 : 0);
    return MC_INVALID_PARAMS;
}

static struct mc_str scalar(const yaml_node_t *node) {
    return node && node->type == YAML_SCALAR_NODE
               ? (struct mc_str){(const char *)node->data.scalar.value, node->data.scalar.length}
               : (struct mc_str){NULL, 0};
}

static yaml_node_t *member(struct reader *r, const yaml_node_t *map, const char *name) {
    if (!map || map->type != YAML_MAPPING_NODE) {
        return NULL;
    }
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        if (mc_str_eq(scalar(yaml_document_get_node(&r->document, p->key)), mc_str_from(name))) {
            return yaml_document_get_node(&r->document, p->value);
        }
    }
    return NULL;
}

/* Decimal digits and an exact unit of 1024, without a space; 1 to MC_TENANT_QUOTA_MAX. */
static bool quota_of(struct mc_str text, uint64_t *bytes) {
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    uint64_t value = 0;
    size_t i = 0;
    for (; i < text.len && text.ptr[i] >= '0' && text.ptr[i] <= '9'; i++) {
        if (value > MC_TENANT_QUOTA_MAX / 10) {
            return false;
        }
        value = value * 10 + (uint64_t)(text.ptr[i] - '0');
    }
    struct mc_str unit = {text.ptr + i, text.len - i};
    unsigned shift = 0;
    bool known = unit.len == 0;
    for (unsigned u = 0; u < MC_ARRAY_LEN(units) && !known; u++, shift += known ? 0 : 10) {
        known = mc_str_eq(unit, mc_str_from(units[u]));
    }
    if (i == 0 || !known || value == 0 || value > MC_TENANT_QUOTA_MAX >> shift) {
        return false;
    }
    *bytes = value << shift;
    return true;
}

static enum mc_status read_tenant(struct reader *r, const yaml_node_t *node) {
    struct mc_str name = scalar(member(r, node, "name")), scope;
    struct mc_tenant_policy *policy = &r->all[r->count];
    if (name.len == 0 || mc_tenant_normalise(name, &scope) != MC_OK) {
        return wrong(r, node, "a tenant needs a name that does not begin with _");
    }
    if (!quota_of(scalar(member(r, node, "quota")), &policy->bytes)) {
        return wrong(r, node, "a quota is a number above 0, with B, KB, MB, GB, TB or nothing");
    }
    for (size_t i = 0; i < r->count; i++) {
        if (mc_str_eq(mc_str_from(r->all[i].name), name)) {
            return wrong(r, node, "a tenant is there twice");
        }
    }
    policy->name = mc_str_dup(name);
    r->count++;
    return MC_OK;
}

static enum mc_status read_document(struct reader *r) {
    const yaml_node_t *root = yaml_document_get_root_node(&r->document);
    const yaml_node_t *tenants = member(r, root, "tenants");
    if (!mc_str_eq(scalar(member(r, root, "version")), MC_STR("1"))) {
        return wrong(r, root, "version must be 1");
    }
    if (!tenants || tenants->type != YAML_SEQUENCE_NODE) {
        return wrong(r, root, "tenants must be a list");
    }
    const yaml_node_item_t *first = tenants->data.sequence.items.start;
    size_t count = (size_t)(tenants->data.sequence.items.top - first);
    if (count > MC_TENANTS_MAX) {
        return wrong(r, tenants, "too many tenants");
    }
    r->all = mc_zalloc((count + 1) * sizeof(*r->all));
    for (size_t i = 0; i < count; i++) {
        MC_TRY(read_tenant(r, yaml_document_get_node(&r->document, first[i])));
    }
    return MC_OK;
}

static enum mc_status read_file(const char *path, struct mc_buf *text) {
    struct mc_buf why = {0};
    enum mc_status status = mc_text_file_read(path, FILE_MAX, text, &why);
    if (status != MC_OK) {
        mc_error("tenant quotas: file=%s %s", path, why.data);
    }
    mc_buf_free(&why);
    return status;
}

/* libyaml needs the square of the depth, and loads all before anybody sees it. */
static enum mc_status refuse_depth(struct reader *r, struct mc_str text) {
    yaml_parser_t parser;
    enum mc_status status = MC_OK;
    unsigned depth = 0;
    bool more = yaml_parser_initialize(&parser) != 0;
    yaml_parser_set_input_string(&parser, (const unsigned char *)text.ptr, text.len);
    while (more && status == MC_OK) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            break; /* what loads it will say why */
        }
        depth += event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
        depth -= event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        if (depth > DEPTH_MAX) {
            mc_error("tenant quotas: nested too deeply file=%s line=%zu", r->path,
                     event.start_mark.line + 1);
            status = MC_INVALID_PARAMS;
        }
        more = event.type != YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return status;
}

static enum mc_status parse(struct reader *r, struct mc_str text) {
    yaml_parser_t parser;
    enum mc_status status = MC_INVALID_PARAMS;
    MC_TRY(refuse_depth(r, text));
    if (!yaml_parser_initialize(&parser)) {
        return wrong(r, NULL, "no memory");
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text.ptr, text.len);
    if (yaml_parser_load(&parser, &r->document)) {
        status = read_document(r);
        yaml_document_delete(&r->document);
    } else {
        mc_error("tenant quotas: %s file=%s line=%zu", parser.problem ? parser.problem : "no YAML",
                 r->path, parser.problem_mark.line + 1);
    }
    yaml_parser_delete(&parser);
    return status;
}

enum mc_status mc_tenant_policy_load(const char *path, const struct mc_quota_store *store,
                                     struct mc_tenant_policy **out, size_t *count) {
    struct reader r = {.path = path};
    struct mc_buf text = {0};
    enum mc_status status = store->load ? store->load(store->ctx, &text) : read_file(path, &text);
    if (status == MC_OK && !(store->load && text.len == 0)) {
        status = parse(&r, (struct mc_str){text.data, text.len});
    }
    mc_buf_free(&text);
    if (status != MC_OK) {
        mc_tenant_policy_free(r.all, r.count);
        return status;
    }
    *out = r.all;
    *count = r.count;
    return MC_OK;
}

void mc_tenant_policy_free(struct mc_tenant_policy *all, size_t count) {
    for (size_t i = 0; i < count; i++) {
        free(all[i].name);
    }
    free(all);
}

/* ---- writing ---- */

static void put_text(const struct mc_tenant_policy *all, size_t count, struct mc_buf *out) {
    mc_buf_puts(out, count ? "version: 1\n\ntenants:\n" : "version: 1\n\ntenants: []\n");
    for (size_t i = 0; i < count; i++) { /* names have no control characters */
        mc_buf_puts(out, "  - name: \"");
        for (const char *c = all[i].name; *c; c++) {
            if (*c == '"' || *c == '\\') {
                mc_buf_putc(out, '\\');
            }
            mc_buf_putc(out, *c);
        }
        mc_buf_printf(out, "\"\n    quota: %" PRIu64 "\n", all[i].bytes);
    }
}

static bool write_all(int fd, const char *bytes, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t n = write(fd, bytes + done, len - done);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return fsync(fd) == 0;
}

/* So that the new name outlives a crash of the machine; without that the old file may come back. */
static void sync_folder(const char *path) {
    char *folder = mc_strdup(path);
    char *slash = strrchr(folder, '/');
    if (slash) {
        slash[slash == folder] = '\0';
    }
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0) {
        mc_warn("tenant quotas: the folder is not on disk file=%s errno=%d", path, errno);
    }
    if (fd >= 0) {
        close(fd);
    }
    free(folder);
}

static enum mc_status write_file(const char *path, struct mc_str text) {
    struct mc_buf name = {0};
    enum mc_status status = MC_PERSISTENT_FAIL;
    mc_buf_printf(&name, "%s.tmp.%d", path, (int)getpid());
    const char *temporary = mc_buf_cstr(&name);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool written = fd >= 0 && write_all(fd, text.ptr, text.len);
    if (fd >= 0) {
        close(fd);
    }
    if (written && rename(temporary, path) == 0) {
        sync_folder(path);
        status = MC_OK;
    } else {
        mc_error("tenant quotas: cannot write file=%s errno=%d", temporary, errno);
        unlink(temporary);
    }
    mc_buf_free(&name);
    return status;
}

enum mc_status mc_tenant_policy_save(const char *path, const struct mc_quota_store *store,
                                     const struct mc_tenant_policy *all, size_t count) {
    struct mc_buf text = {0};
    put_text(all, count, &text);
    struct mc_str whole = {text.data, text.len};
    enum mc_status status = store->save ? store->save(store->ctx, whole) : write_file(path, whole);
    mc_buf_free(&text);
    return status;
}
