/* See io/tls_files.h. */
#include "io/tls_files.h"

#include "base/log.h"

#define CHECK_NS MC_SEC

struct mc_tls_config mc_tls_config_environment(void) {
    return (struct mc_tls_config){getenv("MC_TLS_CERT"), getenv("MC_TLS_KEY"), getenv("MC_TLS_CA"),
                                  getenv("MC_TLS_PEER_NAME")};
}

enum mc_status mc_tls_mode_parse(const char *text, enum mc_tls_mode *out) {
    static const char *const names[] = {
        [MC_TLS_OFF] = "off", [MC_TLS_PREFER] = "prefer", [MC_TLS_REQUIRE] = "require"};
    if (text == NULL || text[0] == '\0') {
        text = getenv("MC_TLS_PEERS");
    }
    if (text == NULL || text[0] == '\0') {
        *out = MC_TLS_OFF;
        return MC_OK;
    }
    for (size_t i = 0; i < MC_ARRAY_LEN(names); i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (enum mc_tls_mode)i;
            return MC_OK;
        }
    }
    mc_error("TLS between peers is off, prefer or require: value=%s", text);
    return MC_INVALID_PARAMS;
}

enum mc_status mc_tls_config_check(const struct mc_tls_config *config) {
    const char *const paths[MC_TLS_FILES] = {config->cert, config->key, config->ca};
    for (int i = 0; i < MC_TLS_FILES; i++) {
        struct stat st;
        if (paths[i] != NULL && stat(paths[i], &st) == 0 && !S_ISREG(st.st_mode)) {
            mc_error("TLS: not a regular file: path=%s", paths[i]);
            return MC_INVALID_PARAMS;
        }
    }
    return MC_OK;
}

/* A file that is not there has no version. */
static void read_versions(const struct mc_tls_files *files,
                          struct mc_file_version versions[MC_TLS_FILES]) {
    memset(versions, 0, MC_TLS_FILES * sizeof(versions[0])); /* padding is compared too */
    for (int i = 0; i < MC_TLS_FILES; i++) {
        struct stat st;
        if (files->paths[i] != NULL && stat(files->paths[i], &st) == 0) {
            versions[i].device = st.st_dev;
            versions[i].inode = st.st_ino;
            versions[i].size = st.st_size;
            versions[i].changed = st.st_mtim;
        }
    }
}

void mc_tls_files_init(struct mc_tls_files *files, const struct mc_tls_config *config) {
    const char *paths[MC_TLS_FILES] = {config->cert, config->key, config->ca};
    for (int i = 0; i < MC_TLS_FILES; i++) {
        bool given = paths[i] != NULL && paths[i][0] != '\0';
        files->paths[i] = given ? mc_strdup(paths[i]) : NULL;
    }
    read_versions(files, files->versions);
    files->next_look_ns = mc_now_ns(mc_clock_system()) + CHECK_NS;
}

void mc_tls_files_free(struct mc_tls_files *files) {
    for (int i = 0; i < MC_TLS_FILES; i++) {
        free(files->paths[i]);
    }
}

bool mc_tls_files_changed(struct mc_tls_files *files) {
    struct mc_file_version now[MC_TLS_FILES];
    uint64_t now_ns = mc_now_ns(mc_clock_system());
    if (now_ns < files->next_look_ns) {
        return false;
    }
    files->next_look_ns = now_ns + CHECK_NS;
    read_versions(files, now);
    if (memcmp(now, files->versions, sizeof(now)) == 0) {
        return false;
    }
    memcpy(files->versions, now, sizeof(now));
    return true;
}

struct mc_tls_config mc_tls_files_config(const struct mc_tls_files *files) {
    return (struct mc_tls_config){files->paths[0], files->paths[1], files->paths[2], NULL};
}

void mc_tls_files_say_renewed(const struct mc_tls_files *files) {
    mc_info("TLS: files have changed and are used from now on: cert=%s ca=%s",
            files->paths[0] != NULL ? files->paths[0] : "none",
            files->paths[2] != NULL ? files->paths[2] : "none");
}
