#!/usr/bin/env python3
"""What the `mooncake` command puts and removes reaches a ZeroMQ subscriber of the master program, member for member, and again
from the replay endpoint; wrong options are refused by name."""
import ctypes
import json
import pathlib
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from support.programs import Master, Node, bin_dir, check, check_equal, http, main, run  # noqa: E402

BIN = bin_dir()
SUB, DEALER, SUBSCRIBE, RCVTIMEO, RCVMORE, SNDMORE, LINGER = 2, 5, 6, 27, 13, 2, 17
try:
    ZMQ = ctypes.CDLL("libzmq.so.5")
except OSError:
    print("skipped: no libzmq.so.5")
    sys.exit(77)
ZMQ.zmq_ctx_new.restype = ZMQ.zmq_socket.restype = ctypes.c_void_p


class Socket:
    def __init__(self, kind, endpoint):
        self.context = ctypes.c_void_p(ZMQ.zmq_ctx_new())
        self.socket = ctypes.c_void_p(ZMQ.zmq_socket(self.context, kind))
        for option, value in ((RCVTIMEO, 20000), (LINGER, 0)):
            ZMQ.zmq_setsockopt(self.socket, option, ctypes.byref(ctypes.c_int(value)), ctypes.c_size_t(4))
        if kind == SUB:
            ZMQ.zmq_setsockopt(self.socket, SUBSCRIBE, b"", ctypes.c_size_t(0))
        check_equal(ZMQ.zmq_connect(self.socket, endpoint.encode()), 0, f"connecting to {endpoint}")

    def send(self, *frames):
        for i, frame in enumerate(frames):
            ZMQ.zmq_send(self.socket, frame, ctypes.c_size_t(len(frame)), SNDMORE if i + 1 < len(frames) else 0)

    def receive(self):
        frames, more = [], True
        while more:
            buffer = ctypes.create_string_buffer(1 << 20)
            size = ZMQ.zmq_recv(self.socket, buffer, ctypes.c_size_t(len(buffer)), 0)
            check(size >= 0, "nothing was received within 20 s")
            frames.append(buffer.raw[:size])
            flag, length = ctypes.c_int(0), ctypes.c_size_t(4)
            ZMQ.zmq_getsockopt(self.socket, RCVMORE, ctypes.byref(flag), ctypes.byref(length))
            more = flag.value
        return frames

    def close(self):
        ZMQ.zmq_close(self.socket)
        ZMQ.zmq_ctx_term(self.context)


def unpack(data, at=0):
    """The MessagePack value at an offset, and where it ends."""
    tag = data[at]
    if tag < 0x80:
        return tag, at + 1
    if tag >= 0xe0:
        return tag - 256, at + 1
    if tag in (0xc0, 0xc2, 0xc3):
        return {0xc0: None, 0xc2: False, 0xc3: True}[tag], at + 1
    numbers = {0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q", 0xd0: ">b", 0xd1: ">h", 0xd2: ">i", 0xd3: ">q"}
    if tag in numbers:
        size = struct.calcsize(numbers[tag])
        return struct.unpack(numbers[tag], data[at + 1:at + 1 + size])[0], at + 1 + size
    sizes = {0xd9: 1, 0xda: 2, 0xdb: 4, 0xdc: 2, 0xdd: 4, 0xde: 2}
    if tag in sizes:
        count, at = int.from_bytes(data[at + 1:at + 1 + sizes[tag]], "big"), at + 1 + sizes[tag]
        kind = {0xdc: "array", 0xdd: "array", 0xde: "map"}.get(tag, "text")
    else:
        kind, count = ("map", tag & 15) if tag < 0x90 else ("array", tag & 15) if tag < 0xa0 else ("text", tag & 31)
        at += 1
    if kind == "text":
        return data[at:at + count].decode(), at + count
    items = []
    for _ in range(count * (2 if kind == "map" else 1)):
        item, at = unpack(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2])) if kind == "map" else items), at


def events_of(frames):
    check_equal(len(frames), 3, "frames")
    check_equal(frames[0], b"", "the topic")
    (time_ms, events, rank), end = unpack(frames[2])
    check_equal((end, rank), (len(frames[2]), 0), "end and rank")
    check(abs(time_ms / 1000 - time.time()) < 3600, f"the time {time_ms}")
    for event in events:
        check_equal(event["timestamp"], time_ms, "an event's time")
    return int.from_bytes(frames[1], "big"), events


def put_and_removed(closing, scratch):
    master = Master(BIN, "--enable_kv_events=true", "--kv_events_bind_endpoint=tcp://127.0.0.1:*",
                    "--kv_events_replay_endpoint=tcp://127.0.0.1:*", "--kv_events_backend_id=pool-a",
                    "--default_kv_lease_ttl=50")
    closing.append(master)
    closing.append(Node(BIN, master))
    status = json.loads(http("GET", master.admin, "/kv_events/status")[2])
    check_equal(list(status)[:5], ["enabled", "published_batches", "published_events", "dropped_events",
                                   "skipped_unparsed_keys"], "upstream's members")
    check_equal(status["enabled"], True, "enabled")
    at = f"--master={master.rpc}"
    for key in ("0x1f", "a/b"):
        check_equal(run([BIN / "mooncake", "put", at, key], input_bytes=b"x").returncode, 0, f"put {key}")
    check_equal(run([BIN / "mooncake", "rm", at, "--force", "0x1f"]).returncode, 0, "rm")
    replay = Socket(DEALER, status["replay_endpoint"])
    got, sequences = [], []
    replay.send(b"", (0).to_bytes(8, "big"))
    while True:
        frames = replay.receive()
        if frames[1] == b"\xff" * 8:
            check_equal(frames[2], b"", "the end's payload")
            break
        sequence, events = events_of(frames)
        sequences.append(sequence)
        got += events
    replay.close()
    check_equal(sequences, list(range(len(sequences))), "sequence numbers")
    check_equal([(e["event_type"], e["object_key"]) for e in got],
                [("stored", "0x1f"), ("stored", "a/b"), ("removed", "0x1f")], "events")
    nothing = dict.fromkeys(("model_name", "block_size", "additional_salt", "lora_name", "group_id", "dp_rank"))
    common = dict(nothing, tenant_id="default", backend_id="pool-a", medium="cpu", object_key="0x1f",
                  seq_hashes=[31], block_hashes=[31])
    stamps = ("event_id", "timestamp")
    check_equal({k: v for k, v in got[0].items() if k not in stamps},
                dict(common, event_type="stored", type="BlockStored", base_block_idx=0, parent_hash=None,
                     token_ids=None, parent_block_hash=None), "a stored event")
    check_equal({k: v for k, v in got[2].items() if k not in stamps},
                dict(common, event_type="removed", type="BlockRemoved", base_block_idx=None), "a removed event")
    check_equal([e["event_id"] for e in got], [1, 2, 3], "event ids")
    status = json.loads(http("GET", master.admin, "/kv_events/status")[2])
    check_equal((status["published_events"], status["dropped_events"], status["replays"]), (3, 0, 1), "counts")
    check("master_kv_events_published_total 3" in http("GET", master.admin, "/metrics")[2], "the metric")


def live(closing, scratch):
    master = Master(BIN, "--enable_kv_events=true", "--kv_events_bind_endpoint=tcp://127.0.0.1:*",
                    "--kv_events_backend_id=b", "--kv_events_emit_legacy_compat=false")
    closing.append(master)
    closing.append(Node(BIN, master))
    status = json.loads(http("GET", master.admin, "/kv_events/status")[2])
    check_equal(status["replay_endpoint"], "", "no replay was asked for")
    sub = Socket(SUB, status["endpoint"])
    keys = []
    brief = ctypes.c_int(200)
    ZMQ.zmq_setsockopt(sub.socket, RCVTIMEO, ctypes.byref(brief), ctypes.c_size_t(4))
    events = None
    for n in range(100):  # until the two know each other
        keys.append(f"live/{n}")
        check_equal(run([BIN / "mooncake", "put", f"--master={master.rpc}", keys[-1]], input_bytes=b"y").returncode, 0, "put")
        try:
            _, events = events_of(sub.receive())
            break
        except AssertionError:
            continue
    sub.close()
    check(events, "no event arrived")
    check(events[-1]["object_key"] in keys and "type" not in events[-1], f"the event {events[-1]}")


def wrong_options(closing, scratch):
    for flags, text in ((["--enable_kv_events"], b"kv_events_bind_endpoint"),
                        (["--enable_kv_events", "--kv_events_bind_endpoint=tcp://127.0.0.1:*"], b"kv_events_backend_id"),
                        (["--enable_kv_events", "--kv_events_bind_endpoint=nonsense", "--kv_events_backend_id=b"],
                         b"nonsense")):
        result = run([BIN / "mooncake_master", "--port=0", "--metrics_port=0", *flags])
        check(result.returncode == 1 and text in result.stderr, f"{flags}: {result}")


main(put_and_removed, live, wrong_options)
