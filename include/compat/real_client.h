/*
 * What C++ programs use of upstream's store client, mooncake::RealClient, as LMCache's native
 * connector does: compiled against this header and linked with -lstore they run on Mooncake in C.
 *
 *     auto client = mooncake::RealClient::create();
 *     if (!client->setup_internal({{"local_hostname", "127.0.0.1"}, {"metadata_server",
 *         "P2PHANDSHAKE"}, {"master_server_addr", "127.0.0.1:50051"}}).has_value()) ...
 *     client->put_from("key", bytes, length);
 *     client->get_into("key", buffer, capacity);
 *
 * Header only, over store_c.h; C++17. Source compatible, not binary: upstream's object files cannot
 * be linked. Functions may be called from any thread once setup_internal returned; tearDownAll, and
 * the end of the last owner, when no other call is inside.
 */
#ifndef MOONCAKE_COMPAT_REAL_CLIENT_H
#define MOONCAKE_COMPAT_REAL_CLIENT_H

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <strings.h>
#include <unordered_map>

#include <store_c.h>

namespace mooncake {

using ConfigDict = std::unordered_map<std::string, std::string>;

/* 0 or upstream's error number (mooncake/error.h); looks like upstream's expected<void>. */
class SetupResult {
  public:
    explicit SetupResult(int code) : code_(code) {}
    bool has_value() const { return code_ == 0; }
    explicit operator bool() const { return has_value(); }
    int error() const { return code_; }

  private:
    int code_;
};

class RealClient {
  public:
    static std::shared_ptr<RealClient> create() {
        return std::shared_ptr<RealClient>(new RealClient());
    }
    ~RealClient() { tearDownAll(); }
    RealClient(const RealClient &) = delete;
    RealClient &operator=(const RealClient &) = delete;

    /* Keys: local_hostname and metadata_server (required), global_segment_size and
     * local_buffer_size (16777216; KB, MB, GB, TB may follow the number), protocol ("tcp"),
     * rdma_devices (""), master_server_addr ("127.0.0.1:50051"). Others are passed over, as
     * upstream does. -600 for what cannot be read. */
    SetupResult setup_internal(const ConfigDict &config) {
        std::optional<std::string> host = find(config, "local_hostname");
        std::optional<std::string> metadata = find(config, "metadata_server");
        std::optional<uint64_t> segment = bytes(config, "global_segment_size");
        std::optional<uint64_t> buffer = bytes(config, "local_buffer_size");
        if (store_ != nullptr || !host || !metadata || !segment || !buffer) {
            return SetupResult(INVALID_PARAMS);
        }
        store_ = mooncake_store_create();
        if (store_ == nullptr) {
            return SetupResult(INTERNAL_ERROR);
        }
        std::string protocol = find(config, "protocol").value_or("tcp");
        std::string devices = find(config, "rdma_devices").value_or("");
        std::string master = find(config, "master_server_addr").value_or("127.0.0.1:50051");
        int code = mooncake_store_setup(store_, host->c_str(), metadata->c_str(), *segment, *buffer,
                                        protocol.c_str(), devices.c_str(), master.c_str());
        if (code != 0) {
            tearDownAll();
        }
        return SetupResult(code);
    }

    /* 0 or a negative error number. */
    int put_from(const std::string &key, void *buffer, size_t size) {
        return store_ == nullptr
                   ? INVALID_PARAMS
                   : mooncake_store_put_from(store_, key.c_str(), buffer, size, nullptr);
    }
    /* The object's bytes or a negative error number; -600 when it does not fit. */
    int64_t get_into(const std::string &key, void *buffer, size_t size) {
        return store_ == nullptr ? INVALID_PARAMS
                                 : mooncake_store_get_into(store_, key.c_str(), buffer, size);
    }
    /* 1, 0 or a negative error number. */
    int isExist(const std::string &key) {
        return store_ == nullptr ? INVALID_PARAMS : mooncake_store_is_exist(store_, key.c_str());
    }
    int remove(const std::string &key, bool force = false) {
        return store_ == nullptr ? INVALID_PARAMS
                                 : mooncake_store_remove(store_, key.c_str(), force ? 1 : 0);
    }
    int register_buffer(void *buffer, size_t size) {
        return store_ == nullptr ? INVALID_PARAMS
                                 : mooncake_store_register_buffer(store_, buffer, size);
    }
    int unregister_buffer(void *buffer) {
        return store_ == nullptr ? INVALID_PARAMS
                                 : mooncake_store_unregister_buffer(store_, buffer);
    }
    /* Unmounts and closes; 0, also when there is nothing to close. setup_internal may follow. */
    int tearDownAll() {
        mooncake_store_destroy(store_);
        store_ = nullptr;
        return 0;
    }

  private:
    static constexpr int INVALID_PARAMS = -600, INTERNAL_ERROR = -1;

    RealClient() = default;

    static std::optional<std::string> find(const ConfigDict &config, const char *key) {
        auto at = config.find(key);
        return at == config.end() ? std::nullopt : std::optional<std::string>(at->second);
    }
    static std::optional<uint64_t> bytes(const ConfigDict &config, const char *key) {
        static const struct {
            const char *suffix;
            int shift;
        } UNITS[] = {{"", 0},    {"b", 0},  {"k", 10},  {"kb", 10}, {"m", 20},
                     {"mb", 20}, {"g", 30}, {"gb", 30}, {"t", 40},  {"tb", 40}};
        std::string text = find(config, key).value_or("16777216");
        if (text.empty() || text[0] < '0' || text[0] > '9') {
            return std::nullopt;
        }
        char *end = nullptr;
        errno = 0;
        unsigned long long number = std::strtoull(text.c_str(), &end, 10);
        end += *end == ' ' ? 1 : 0;
        for (const auto &unit : UNITS) {
            if (strcasecmp(end, unit.suffix) == 0 && errno == 0 &&
                number <= (UINT64_MAX >> unit.shift)) {
                return static_cast<uint64_t>(number) << unit.shift;
            }
        }
        return std::nullopt;
    }

    mooncake_store_t store_ = nullptr;
};

} // namespace mooncake

#endif
