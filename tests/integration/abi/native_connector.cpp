/*
 * Uses mooncake::RealClient the way that LMCache's native connector does: threads that each put,
 * look for and get chunks through one client; then what is refused. Argument: the master.
 */
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "real_client.h"

static constexpr size_t CHUNK = 192 << 10;
static constexpr int THREADS = 4, CHUNKS = 16;

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                           \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static void fill(std::vector<char> &chunk, int thread, int i) {
    for (size_t at = 0; at < chunk.size(); at++) {
        chunk[at] = static_cast<char>(at * 7 + static_cast<size_t>(thread * 31 + i * 3));
    }
}

static size_t worker(mooncake::RealClient &client, int thread) {
    size_t right = 0;
    std::vector<char> source(CHUNK), target(CHUNK);
    for (int i = 0; i < CHUNKS; i++) {
        std::string key = "chunk/" + std::to_string(thread) + "/" + std::to_string(i);
        fill(source, thread, i);
        std::memset(target.data(), 0, CHUNK);
        right += client.isExist(key) == 0 && client.put_from(key, source.data(), CHUNK) == 0 &&
                 client.isExist(key) == 1 &&
                 client.get_into(key, target.data(), CHUNK) == static_cast<int64_t>(CHUNK) &&
                 std::memcmp(source.data(), target.data(), CHUNK) == 0;
    }
    return right;
}

int main(int argc, char **argv) {
    REQUIRE(argc == 2);
    std::shared_ptr<mooncake::RealClient> client = mooncake::RealClient::create();
    mooncake::ConfigDict config = {{"local_hostname", "127.0.0.1"},
                                   {"metadata_server", "P2PHANDSHAKE"},
                                   {"global_segment_size", "32 MB"},
                                   {"local_buffer_size", "16777216"},
                                   {"protocol", "tcp"},
                                   {"rdma_devices", ""},
                                   {"master_server_addr", argv[1]},
                                   {"something_else", "is passed over"}};
    char byte = 0;
    REQUIRE(client->put_from("k", &byte, 1) == -600 && client->isExist("k") == -600);
    mooncake::ConfigDict bad = config;
    bad["global_segment_size"] = "12 parsecs";
    REQUIRE(!client->setup_internal(bad).has_value());
    bad = config;
    bad.erase("local_hostname");
    REQUIRE(client->setup_internal(bad).error() == -600);
    REQUIRE(client->setup_internal(config).has_value());
    REQUIRE(client->setup_internal(config).error() == -600); /* once */

    std::atomic<size_t> right{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; t++) {
        threads.emplace_back([&, t] { right += worker(*client, t); });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    REQUIRE(right == THREADS * CHUNKS);
    REQUIRE(client->get_into("nobody's", &byte, 1) == -704);
    REQUIRE(client->get_into("chunk/0/0", &byte, 1) == -600);
    REQUIRE(client->remove("chunk/0/0", true) == 0 && client->isExist("chunk/0/0") == 0);
    REQUIRE(client->tearDownAll() == 0 && client->tearDownAll() == 0);
    REQUIRE(client->setup_internal(config).has_value()); /* again; the end of its owner closes it */
    std::printf("%zu chunks came back\n", right.load());
    return 0;
}
