/*
 * The Transfer Engine for C++17: mooncake/transfer.h with owners instead of calls in pairs, and
 * exceptions instead of statuses. Header only; link -lmooncake.
 *
 *     mooncake::Options options;
 *     options.host = "10.0.0.1";                           // P2P handshake, any free port
 *     mooncake::Engine engine(options);
 *     auto memory = engine.allocate(1 << 20);              // or engine.register_memory(p, n)
 *     auto peer = engine.open("10.0.0.2:15231");
 *     engine.read(memory.data(), peer, remote_address, length, std::chrono::seconds(1));
 *
 *     auto batch = engine.batch();
 *     batch.submit(requests, mooncake::forever);
 *     batch.wait(std::chrono::seconds(1));
 *
 * Every call that fails throws mooncake::Error, which holds the status of mooncake/error.h. Owners
 * (Engine, Memory, Registration, Segment, Batch) can be moved and not copied, and must not outlive
 * their engine, except batches. A batch that is destroyed while tasks run cancels them first.
 * Threads, limits and semantics are those of mooncake/transfer.h.
 */
#ifndef MOONCAKE_TRANSFER_HPP
#define MOONCAKE_TRANSFER_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mooncake/transfer.h"

namespace mooncake {

class Error : public std::runtime_error {
  public:
    Error(enum mc_status status, const std::string &call)
        : std::runtime_error(call + ": " + mc_status_text(status) + " (" + mc_status_name(status) +
                             ")"),
          status_(status) {}
    enum mc_status status() const noexcept { return status_; }

  private:
    enum mc_status status_;
};

inline void check(enum mc_status status, const char *call) {
    if (status != MC_OK) {
        throw Error(status, call);
    }
}

using milliseconds = std::chrono::milliseconds;
/* A timeout that never passes. */
inline constexpr milliseconds forever = milliseconds::max();

inline uint64_t deadline(milliseconds timeout) {
    return timeout == forever
               ? MC_WAIT_FOREVER
               : mc_deadline_in_ms(timeout.count() < 0 ? 0 : (uint64_t)timeout.count());
}

/* What an engine is made of; empty and 0 = the default of mc_engine_options_init. */
struct Options {
    std::string metadata{};
    std::string local_name{};
    std::string host{};
    uint16_t rpc_port = 0;
    bool disable_shm = false;
};

/* Registered memory of the application's. */
class Registration {
  public:
    Registration() = default;
    Registration(struct mc_engine *engine, void *addr) : engine_(engine), addr_(addr) {}
    Registration(Registration &&other) noexcept { swap(other); }
    Registration &operator=(Registration &&other) noexcept {
        swap(other);
        return *this;
    }
    ~Registration() {
        if (addr_ != nullptr) {
            (void)!mc_memory_unregister(engine_, addr_);
        }
    }
    void *data() const noexcept { return addr_; }

  private:
    void swap(Registration &other) noexcept {
        std::swap(engine_, other.engine_);
        std::swap(addr_, other.addr_);
    }
    struct mc_engine *engine_ = nullptr;
    void *addr_ = nullptr;
};

/* Memory of the engine's, which same-host peers map. */
class Memory {
  public:
    Memory() = default;
    Memory(struct mc_engine *engine, void *addr, size_t size)
        : engine_(engine), addr_(addr), size_(size) {}
    Memory(Memory &&other) noexcept { swap(other); }
    Memory &operator=(Memory &&other) noexcept {
        swap(other);
        return *this;
    }
    ~Memory() {
        if (addr_ != nullptr) {
            (void)!mc_memory_free(engine_, addr_);
        }
    }
    char *data() const noexcept { return static_cast<char *>(addr_); }
    size_t size() const noexcept { return size_; }

  private:
    void swap(Memory &other) noexcept {
        std::swap(engine_, other.engine_);
        std::swap(addr_, other.addr_);
        std::swap(size_, other.size_);
    }
    struct mc_engine *engine_ = nullptr;
    void *addr_ = nullptr;
    size_t size_ = 0;
};

/* An opened segment. */
class Segment {
  public:
    Segment() = default;
    Segment(struct mc_engine *engine, mc_segment_id id) : engine_(engine), id_(id) {}
    Segment(Segment &&other) noexcept { swap(other); }
    Segment &operator=(Segment &&other) noexcept {
        swap(other);
        return *this;
    }
    ~Segment() {
        if (engine_ != nullptr) {
            (void)!mc_segment_close(engine_, id_);
        }
    }
    mc_segment_id id() const noexcept { return id_; }
    void refresh() { check(mc_segment_refresh(engine_, id_), "mc_segment_refresh"); }
    bool probe(milliseconds timeout) {
        return mc_segment_probe(engine_, id_, deadline(timeout)) == MC_OK;
    }
    std::vector<struct mc_buffer_info> buffers() const {
        std::vector<struct mc_buffer_info> list;
        size_t count = 0;
        do { /* it may grow in between */
            list.resize(count);
            check(mc_segment_buffers(engine_, id_, list.data(), list.size(), &count),
                  "mc_segment_buffers");
        } while (count > list.size());
        list.resize(count);
        return list;
    }
    /* A pointer to read through without a copy; valid until the segment is closed. */
    const void *map(uint64_t addr, size_t length) const {
        const void *at = nullptr;
        check(mc_segment_map(engine_, id_, addr, length, &at), "mc_segment_map");
        return at;
    }

  private:
    void swap(Segment &other) noexcept {
        std::swap(engine_, other.engine_);
        std::swap(id_, other.id_);
    }
    struct mc_engine *engine_ = nullptr;
    mc_segment_id id_ = MC_LOCAL_SEGMENT;
};

/* One request; its priority, intent and hint are members to set. */
inline struct mc_transfer_request request(enum mc_transfer_op op, void *local,
                                          const Segment &segment, uint64_t addr, uint64_t length) {
    struct mc_transfer_request r = {};
    r.op = op;
    r.local = local;
    r.segment = segment.id();
    r.remote_addr = addr;
    r.length = length;
    return r;
}

class Batch {
  public:
    Batch() = default;
    Batch(struct mc_engine *engine, size_t capacity) {
        check(mc_batch_create(engine, capacity, &batch_), "mc_batch_create");
    }
    Batch(Batch &&other) noexcept { swap(other); }
    Batch &operator=(Batch &&other) noexcept {
        swap(other);
        return *this;
    }
    ~Batch() {
        if (batch_ == nullptr || mc_batch_free(batch_) == MC_OK) {
            return;
        }
        for (size_t i = 0; mc_batch_cancel(batch_, i) == MC_OK; i++) {
        }
        (void)!mc_batch_wait(batch_, MC_WAIT_FOREVER);
        (void)!mc_batch_free(batch_);
    }
    void submit(const std::vector<struct mc_transfer_request> &requests, milliseconds timeout) {
        check(mc_batch_submit(batch_, requests.data(), requests.size(), deadline(timeout)),
              "mc_batch_submit");
    }
    void notify(const Segment &segment, const std::string &name, const std::string &message) {
        check(mc_batch_notify(batch_, segment.id(), name.c_str(), message.c_str()),
              "mc_batch_notify");
    }
    struct mc_transfer_status status(size_t task) {
        struct mc_transfer_status status;
        check(mc_batch_task(batch_, task, &status), "mc_batch_task");
        return status;
    }
    void cancel(size_t task) { check(mc_batch_cancel(batch_, task), "mc_batch_cancel"); }
    /* Throws what the first failed task failed with, or MC_ERR_TIMEOUT. */
    void wait(milliseconds timeout) { check(mc_batch_wait(batch_, deadline(timeout)), "transfer"); }

  private:
    void swap(Batch &other) noexcept { std::swap(batch_, other.batch_); }
    struct mc_batch *batch_ = nullptr;
};

struct Notification {
    std::string name, message;
};

class Engine {
  public:
    explicit Engine(const Options &wanted = {}) {
        struct mc_engine_options options;
        mc_engine_options_init(&options);
        if (!wanted.metadata.empty()) {
            options.metadata = wanted.metadata.c_str();
        }
        options.local_name = wanted.local_name.c_str();
        options.host = wanted.host.c_str();
        options.rpc_port = wanted.rpc_port;
        options.disable_shm |= wanted.disable_shm;
        check(mc_engine_create(&options, &engine_), "mc_engine_create");
    }
    Engine(Engine &&other) noexcept { std::swap(engine_, other.engine_); }
    Engine &operator=(Engine &&other) noexcept {
        std::swap(engine_, other.engine_);
        return *this;
    }
    ~Engine() { mc_engine_destroy(engine_); }

    struct mc_engine *get() const noexcept {
        return engine_;
    }
    std::string name() const { return mc_engine_name(engine_); }
    std::string host() const { return mc_engine_host(engine_); }
    uint16_t rpc_port() const { return mc_engine_rpc_port(engine_); }
    std::string metrics() const {
        char *text = mc_engine_metrics(engine_);
        std::string out = text;
        std::free(text);
        return out;
    }

    Registration register_memory(void *addr, size_t length, const std::string &location = "*",
                                 unsigned flags = 0) {
        check(mc_memory_register(engine_, addr, length, location.c_str(), flags),
              "mc_memory_register");
        return Registration(engine_, addr);
    }
    Memory allocate(size_t length, const std::string &location = "*") {
        void *addr = nullptr;
        check(mc_memory_alloc(engine_, length, location.c_str(), &addr), "mc_memory_alloc");
        return Memory(engine_, addr, length);
    }
    Segment open(const std::string &name) {
        mc_segment_id id;
        check(mc_segment_open(engine_, name.c_str(), &id), "mc_segment_open");
        return Segment(engine_, id);
    }

    void read(void *local, const Segment &from, uint64_t addr, uint64_t length,
              milliseconds timeout) {
        one(request(MC_TRANSFER_READ, local, from, addr, length), timeout);
    }
    void write(const void *local, const Segment &to, uint64_t addr, uint64_t length,
               milliseconds timeout) {
        one(request(MC_TRANSFER_WRITE, const_cast<void *>(local), to, addr, length), timeout);
    }
    void transfer(const std::vector<struct mc_transfer_request> &requests, milliseconds timeout) {
        check(mc_transfer(engine_, requests.data(), requests.size(), deadline(timeout)),
              "mc_transfer");
    }
    Batch batch(size_t capacity = 0) { return Batch(engine_, capacity); }

    void notify(const Segment &segment, const std::string &name, const std::string &message) {
        check(mc_notify_send(engine_, segment.id(), name.c_str(), message.c_str()),
              "mc_notify_send");
    }
    std::vector<Notification> notifications() {
        struct mc_notification *list = nullptr;
        size_t count = 0;
        check(mc_notify_receive(engine_, &list, &count), "mc_notify_receive");
        std::vector<Notification> out;
        for (size_t i = 0; i < count; i++) {
            out.push_back({list[i].name, list[i].message});
        }
        mc_notify_free(list, count);
        return out;
    }

  private:
    void one(const struct mc_transfer_request &wanted, milliseconds timeout) {
        check(mc_transfer(engine_, &wanted, 1, deadline(timeout)), "mc_transfer");
    }
    struct mc_engine *engine_ = nullptr;
};

} // namespace mooncake
#endif
