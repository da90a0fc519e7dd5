"""vLLM's own scheduler, unchanged, with its two Mooncake connectors, both halves: MooncakeStoreConnector (engines that share a store) and
MooncakeConnector (a prefill engine that writes into a decode engine).

Real: Scheduler, KVCacheManager, BlockPool, Request, block hashes, SchedulerOutput, the connectors' classes, and the mixin through which a
model runner calls them. What describes models and GPUs is stand-ins (stand_ins.py). The model is a function: the KV of a position is made
from the tokens up to it. An engine writes it for the tokens that a step schedules, and before that compares what lies in the
blocks of all positions that its scheduler takes for computed: by this engine, or loaded.
"""
import contextlib
import hashlib
import json
import logging
import os
import sys
import tempfile
import time
import types

import stand_ins
from stand_ins import CLIENT, MASTER, absent

KV = "vllm.distributed.kv_transfer.kv_connector"
REAL = {"vllm.distributed.mooncake_store", f"{KV}.base", f"{KV}.factory", f"{KV}.utils", f"{KV}.v1.base", f"{KV}.v1.metrics",
        "vllm.distributed.kv_events", "vllm.utils.func_utils", "vllm.utils.math_utils", "vllm.v1.attention.backends.utils",
        "vllm.v1.kv_cache_interface", "vllm.v1.kv_cache_layout", "vllm.v1.kv_cache_spec_registry", "vllm.v1.engine", "vllm.v1.outputs",
        "vllm.v1.request", "vllm.v1.metrics.stats", "vllm.v1.metrics.cache_hit_source", "vllm.v1.worker.kv_connector_model_runner_mixin"}
stand_ins.all_but(REAL, f"{KV}.v1.mooncake", "vllm.v1.core")
import httpx  # noqa: E402
import torch  # noqa: E402

absent("huggingface_hub")
absent("huggingface_hub.utils").httpx = httpx


def put(module, **names):
    """Gives a stand-in what the real module has and the code under test calls."""
    module = __import__(module, fromlist=["_"])
    for name, what in names.items():
        setattr(module, name, what)


class Logger(logging.Logger):
    info_once = logging.Logger.info
    warning_once = logging.Logger.warning
    debug_once = logging.Logger.debug


def make_zmq_socket(context, path, kind, bind=False, linger=0):
    made = context.socket(kind)
    made.linger = linger
    (made.bind if bind else made.connect)(path)
    return made


logging.setLoggerClass(Logger)
alone = types.SimpleNamespace(world_size=1, rank_in_group=0)
group = {}  # The worker whose turn it is.
put("vllm.logger", init_logger=logging.getLogger)
put("vllm.utils", length_from_prompt_token_ids_or_embeds=lambda tokens, _: len(tokens))
put("vllm.utils.torch_utils", is_non_overlapping_and_dense=lambda tensor: tensor.is_contiguous())
put("vllm.utils.network_utils", get_ip=lambda: "127.0.0.1", make_zmq_socket=make_zmq_socket,
    make_zmq_path=lambda scheme, host, port: f"{scheme}://{host}:{port}",
    split_host_port=lambda address: (address.rsplit(":", 1)[0], int(address.rsplit(":", 1)[1])))
put("vllm.v1.utils", ConstantList=lambda items: items, record_function_or_nullcontext=lambda _: contextlib.nullcontext())
put("vllm.v1.structured_output.request", StructuredOutputRequest=types.SimpleNamespace(from_sampling_params=lambda _: None))
put("vllm.v1.worker.utils", select_common_block_size=lambda size, *_: size)
put("vllm.model_executor.models.utils", extract_layer_index=lambda name: int(name.split(".")[-1]))
put("vllm.distributed", get_dcp_group=lambda: alone, get_pcp_group=lambda: alone, get_tensor_model_parallel_rank=lambda: 0,
    get_tensor_model_parallel_world_size=lambda: 1)
put("vllm.distributed.parallel_state", get_pp_group=lambda: alone, get_tensor_model_parallel_rank=lambda: 0,
    get_tensor_model_parallel_world_size=lambda: 1)
put("vllm.distributed.kv_transfer", get_kv_transfer_group=lambda: group["now"], has_kv_transfer_group=lambda: True)
base = __import__(f"{KV}.v1.base", fromlist=["_"])
put(f"{KV}.v1", KVConnectorBase_V1=base.KVConnectorBase_V1, KVConnectorRole=base.KVConnectorRole, SupportsHMA=base.SupportsHMA,
    supports_hma=base.supports_hma)
put("vllm.forward_context", get_forward_context=lambda: None, set_forward_context=lambda *_: contextlib.nullcontext())
put("vllm.envs", VLLM_MOONCAKE_LOAD_RECV_THREADS=2, VLLM_MOONCAKE_STORE_TIER_LOG=True, VLLM_MOONCAKE_CONNECTOR_TIMEOUT=60,
    VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT=120)


class Event:
    """torch.cuda.Event where there is no GPU: what it would wait for has happened."""

    def record(self):
        pass

    def synchronize(self):
        pass


torch.cuda.Event = Event
torch.accelerator.current_device_index = lambda: 0
import mooncake.store  # noqa: E402
put(f"{KV}.utils", get_current_attn_backends=lambda *_: [], get_current_attn_backends_and_specs=lambda *_: ([], []))
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_utils import MooncakeBootstrapServer  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.core.sched import scheduler as vllm_scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin  # noqa: E402

for real in (mooncake_connector, vllm_scheduler):
    assert real.__file__.startswith(CLIENT)
assert "/build/" in mooncake.store.__file__
LAYERS, BLOCKS, TOKENS, HEADS, SIZE = 3, 120, 16, 4, 32
NAMES = [f"layer.{i}" for i in range(LAYERS)]
SPEC = FullAttentionSpec(block_size=TOKENS, num_kv_heads=HEADS, head_size=SIZE, dtype=torch.bfloat16)
HASHER = kv_cache_utils.get_request_block_hasher(TOKENS, lambda what: hashlib.sha256(repr(what).encode()).digest())
put("vllm.v1.core.kv_cache_utils", NONE_HASH=b"none")


class Given(types.SimpleNamespace):
    """A configuration; what it does not say is off."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def configuration(connector, role, name, extra, tokens_a_step):
    modules = {"MooncakeStoreConnector": f"{KV}.v1.mooncake.store.connector", "MooncakeConnector": f"{KV}.v1.mooncake.mooncake_connector"}
    return Given(
        kv_transfer_config=Given(kv_connector=connector, kv_connector_module_path=modules[connector], kv_role=role, engine_id=name,
                                 is_kv_consumer=role != "kv_producer", kv_load_failure_policy="recompute",
                                 kv_connector_extra_config=extra, get_from_extra_config=extra.get),
        scheduler_config=Given(max_num_seqs=16, max_num_batched_tokens=tokens_a_step, long_prefill_token_threshold=0, policy="fcfs",
                               prefill_schedule_interval=1, enable_chunked_prefill=True, watermark=0.0),
        cache_config=Given(block_size=TOKENS, num_gpu_blocks=BLOCKS, enable_prefix_caching=True),
        parallel_config=Given(data_parallel_index=0, data_parallel_rank_local=0, pipeline_parallel_size=1, rank=0, world_size=1,
                              decode_context_parallel_size=1, prefill_context_parallel_size=1, data_parallel_size=1),
        model_config=Given(model="someone/model", max_model_len=4096, get_num_layers=lambda _: LAYERS,
                           get_total_num_kv_heads=lambda: HEADS),
        ec_manager_config=Given(get_encoder_cache_manager_obj=lambda: None), observability_config=Given(), aux_output_config=Given(),
        max_concurrent_batches=1, num_speculative_tokens=0, num_lookahead_tokens=0, num_hash_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0, max_in_flight_tokens=tokens_a_step)


def kv_of(tokens):
    """[tokens, 32]: the KV of each position, which all tokens up to it make."""
    made, last = bytearray(), b""
    for token in tokens:
        last = hashlib.sha256(last + token.to_bytes(4, "little")).digest()
        made += last
    return torch.frombuffer(made, dtype=torch.uint8).view(-1, 32)


class Engine:
    """A scheduler, a worker, and its cache: per layer [blocks, K and V, tokens, heads, size]."""

    def __init__(self, connector, role, extra=(), tokens_a_step=512, name=None):
        self.config = configuration(connector, role, name or role, dict(extra), tokens_a_step)
        kv = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(NAMES, SPEC)])
        self.caches = {name: torch.zeros(BLOCKS, 2, TOKENS, HEADS, SIZE, dtype=torch.bfloat16) for name in NAMES}
        self.connector = KVConnectorFactory.create_connector(config=self.config, role=KVConnectorRole.WORKER, kv_cache_config=kv)
        self.connector.register_kv_caches(self.caches)
        self.scheduler = vllm_scheduler.Scheduler(self.config, kv, Given(accept_tokens=lambda *_: True, grammar_bitmask=lambda *_: None),
                                                  TOKENS)
        self.free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self.ended, self.computed, self.before_the_step = {}, {}, lambda out: None

    def add(self, name, prompt, new=4, transfer=None):
        sampling = Given(max_tokens=new, min_tokens=0, extra_args={"kv_transfer_params": transfer} if transfer else None,
                         ignore_eos=True, repetition_detection=None)
        self.scheduler.add_request(Request(name, list(prompt), sampling, None, block_hasher=HASHER))

    def place(self, request, first, last):
        """Blocks and rows of these positions."""
        blocks = torch.tensor(self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0])
        positions = torch.arange(first, last)
        return blocks[positions // TOKENS], positions % TOKENS

    def forward(self, out):
        """What attention would read is compared, what it would write is written; the samples."""
        samples = []
        for name, count in out.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            tokens, start = list(request.all_token_ids), request.num_computed_tokens - count
            self.computed[name] = self.computed.get(name, 0) + count
            kv = kv_of(tokens[:start + count]).repeat(1, HEADS * SIZE * 2 // 32)
            for layer, cache in enumerate(self.caches.values()):
                for half in (0, 1):
                    wanted = (kv + (2 * layer + half)).view(torch.bfloat16).view(-1, HEADS, SIZE)
                    if start:
                        block, row = self.place(request, 0, start)
                        stand_ins.same(torch, cache[block, half, row], wanted[:start], (name, layer, half, start))
                    block, row = self.place(request, start, start + count)
                    cache[block, half, row] = wanted[start:]
            samples.append([int.from_bytes(bytes(kv[-1, :2]), "little")] if start + count == len(tokens) else [])
        return samples

    def step(self):
        out = self.scheduler.schedule()
        self.before_the_step(out)
        group["now"] = self.connector
        names = list(out.num_scheduled_tokens)
        if not names:
            result = KVConnectorModelRunnerMixin.kv_connector_no_forward(out, self.config)
        else:
            with KVConnectorModelRunnerMixin.maybe_get_kv_connector_output(out) as transferred:
                samples = self.forward(out)
            result = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, samples, kv_connector_output=transferred)
        for outputs in self.scheduler.update_from_output(out, result).values():
            for one in outputs.outputs:
                self.ended.setdefault(one.request_id, []).extend(one.new_token_ids)
        return bool(names)


    def idle(self):
        return not self.scheduler.requests and self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == self.free


def run(*engines):
    """Steps until no engine has a request, nor blocks that are still to be saved or sent."""
    deadline = time.monotonic() + 120
    while True:
        worked = [engine.step() for engine in engines]
        if all(engine.idle() for engine in engines):
            return
        assert time.monotonic() < deadline, "requests that do not end, or blocks that are not given back"
        if not any(worked):
            time.sleep(0.005)


def prompt(seed, length):
    return torch.randint(0, 50000, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def of_the_store(place, mode, extra, tokens_a_step):
    path = os.path.join(place, f"{mode}.json")
    with open(path, "w") as file:
        json.dump({"metadata_server": "P2PHANDSHAKE", "master_server_address": MASTER, "protocol": "tcp", "mode": mode,
                   "global_segment_size": "64MB" if mode == "embedded" else 0, "local_buffer_size": "16MB"}, file)
    os.environ["MOONCAKE_CONFIG_PATH"] = path
    put("vllm.envs", VLLM_RPC_BASE_PATH=place)
    return Engine("MooncakeStoreConnector", "kv_both", dict(extra, lookup_rpc_port=os.path.basename(place) + mode), tokens_a_step)


def engines_share_a_store(place, extra, tokens_a_step):
    """What one engine computed the other loads; and computes it where it has gone meanwhile."""
    first, second = (of_the_store(place, mode, extra, tokens_a_step) for mode in ("embedded", "standalone-store"))
    prompts = {str(length): prompt(5, 100) + prompt(length, length) for length in (20, 77, 300, 700)}
    for name, tokens in prompts.items():
        first.add(name, tokens)
    run(first)
    for name, tokens in prompts.items():
        second.add(name, tokens)
        second.add(name + " and more", tokens + prompt(9, 50))
    second.add("aborted", prompts["700"])
    second.step()
    second.scheduler.finish_requests("aborted", RequestStatus.FINISHED_ABORTED)
    run(second)
    for name, tokens in prompts.items():
        assert first.ended[name] == second.ended[name] and len(first.ended[name]) == 4
        for one, length in ((name, len(tokens)), (name + " and more", len(tokens) + 50)):
            # All blocks of the prompt but the last token's, and what was sampled.
            computed = second.computed[one] - 3
            assert computed <= length - len(tokens) + TOKENS, (one, computed)
    # Between the look-up and the load the objects go: the blocks are computed.
    assert second.scheduler.reset_prefix_cache()
    gone = []

    def remove(out):
        if out.kv_connector_metadata.requests and not gone:
            gone.append(first.connector.connector_worker.store.remove_all(True))

    second.before_the_step = remove
    second.add("700 again", prompts["700"])
    run(second)
    assert gone and gone[0] > 0 and second.ended["700 again"] == first.ended["700"]
    assert second.computed["700 again"] >= 800, second.computed["700 again"]
    run(first, second)
    assert first.scheduler.reset_connector_cache() and second.scheduler.reset_prefix_cache()
    second.add("300 at last", prompts["300"])
    run(second)
    assert second.computed["300 at last"] >= 400 and second.ended["300 at last"] == first.ended["300"]
    for engine in (first, second):
        engine.scheduler.connector.shutdown()
        engine.connector.shutdown()
    print(f"MooncakeStoreConnector {extra}, {tokens_a_step} tokens a step: ok", flush=True)


def a_prefill_engine_and_a_decode_engine():
    bootstrap = MooncakeBootstrapServer("127.0.0.1", 0)
    bootstrap.start()
    extra = {"mooncake_protocol": "tcp", "bootstrap_server_address": f"127.0.0.1:{bootstrap.port}"}
    prefill, decode = (Engine("MooncakeConnector", role, extra) for role in ("kv_producer", "kv_consumer"))

    def add(name, tokens):
        prefill.add("p " + name, tokens, 1, {"do_remote_decode": True, "transfer_id": "transfer " + name})
        decode.add("d " + name, tokens, 4, {"do_remote_prefill": True, "transfer_id": "transfer " + name,
                                            "remote_engine_id": "kv_producer",
                                            "remote_bootstrap_addr": f"http://127.0.0.1:{bootstrap.port}"})

    for turn in range(2):  # The second time both have their own prefixes.
        for length in (5, 16, 250, 600):
            add(f"{length}.{turn}", prompt(5, 40) + prompt(length, length))
        run(prefill, decode)
    add("aborted", prompt(77, 200))
    decode.scheduler.finish_requests("d aborted", RequestStatus.FINISHED_ABORTED)
    run(prefill, decode)  # The prefill engine gives its blocks back.
    for length in (5, 16, 250, 600):
        assert decode.computed[f"d {length}.0"] <= 1 + 4, decode.computed  # The last token of the prompt, and what was sampled.
        assert decode.ended[f"d {length}.0"] == decode.ended[f"d {length}.1"]
        assert decode.ended[f"d {length}.0"][:1] == prefill.ended[f"p {length}.0"] and len(decode.ended[f"d {length}.0"]) == 4
    print("MooncakeConnector: ok", flush=True)
    bootstrap.shutdown()


with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
    for number, (settings, step) in enumerate((({}, 512), ({"lookup_async": True, "save_decode_cache": True}, 96))):
        os.mkdir(os.path.join(scratch, str(number)))
        engines_share_a_store(os.path.join(scratch, str(number)), settings, step)
a_prefill_engine_and_a_decode_engine()
stand_ins.finish(2 * 2 * 1200 * LAYERS * 2 * HEADS * SIZE * 2)
sys.stdout.flush()
os._exit(0)  # Threads of the connectors wait for ever.
