/*
 * move.c in C++: owners instead of calls in pairs, exceptions instead of statuses.
 *
 *     c++ -std=c++17 move.cpp -o move $(pkg-config --cflags --libs mooncake)
 *     ./move target
 *     ./move initiator NAME ADDRESS
 */
#include <mooncake/transfer.hpp>

#include <cstring>
#include <iostream>
#include <thread>

using namespace std::chrono_literals;

static constexpr size_t size = 1 << 20;

static std::vector<unsigned char> pattern() {
    std::vector<unsigned char> bytes(size);
    for (size_t i = 0; i < size; i++) {
        bytes[i] = static_cast<unsigned char>(i * 7 + i / 251);
    }
    return bytes;
}

static int verdict(const void *bytes, const char *good) {
    bool same = std::memcmp(bytes, pattern().data(), size) == 0;
    std::cout << (same ? good : "WRONG BYTES") << std::endl;
    return same ? 0 : 1;
}

static int be_target(mooncake::Engine &engine) {
    auto memory = engine.allocate(size);
    std::cout << engine.name() << ' ' << static_cast<void *>(memory.data()) << std::endl;
    std::vector<mooncake::Notification> notes;
    while ((notes = engine.notifications()).empty()) {
        std::this_thread::sleep_for(10ms);
    }
    std::cout << notes[0].name << " says: " << notes[0].message << std::endl;
    return verdict(memory.data(), "every byte is there");
}

static int be_initiator(mooncake::Engine &engine, const std::string &name, uint64_t remote) {
    auto bytes = pattern();
    std::vector<unsigned char> back(size);
    auto source = engine.register_memory(bytes.data(), size, "*", MC_MEMORY_LOCAL_ONLY);
    auto sink = engine.register_memory(back.data(), size, "*", MC_MEMORY_LOCAL_ONLY);
    auto peer = engine.open(name);
    engine.write(bytes.data(), peer, remote, size, 5s);
    auto batch = engine.batch(); /* the same as engine.read(), step by step */
    batch.notify(peer, engine.name(), "done");
    batch.submit({mooncake::request(MC_TRANSFER_READ, back.data(), peer, remote, size)}, 5s);
    batch.wait(mooncake::forever);
    return verdict(back.data(), "every byte came back");
}

int main(int argc, char **argv) {
    std::string role = argc > 1 ? argv[1] : "";
    if (!(role == "target" && argc == 2) && !(role == "initiator" && argc == 4)) {
        std::cerr << "usage: " << argv[0] << " target | initiator NAME ADDRESS\n";
        return 2;
    }
    try {
        mooncake::Options options;
        options.host = "127.0.0.1"; /* leave it out to be reached from other machines */
        mooncake::Engine engine(options);
        return role == "target" ? be_target(engine)
                                : be_initiator(engine, argv[2], std::stoull(argv[3], nullptr, 0));
    } catch (const mooncake::Error &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
}
