#!/usr/bin/env python3
"""tebench and transfer_engine_bench between two processes: sweeps, all operations verified, classes of threads, JSON lines,
deadlines, notifications; memory of GPUs, by a driver of host memory (tests/standins/cuda.h) that nothing but its copies can reach;
the printed configuration repeats the run; slow settings are warned of; what is wrong is named."""
import json
import os
import re
import shlex
import sys
import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from programs import Process, bin_dir, check, check_equal, main, run

TEBENCH = bin_dir() / "tebench"
SMALL = ["--total_buffer_size=16MB", "--duration=1", "--seg_name=127.0.0.1", "--minloglevel=1"]
ROW = re.compile(r"^ *(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", re.M)


def target(closing, *flags):
    process = Process([TEBENCH, *SMALL, *flags])
    closing.append(process)
    return process, process.wait_for(r"--target_seg_name=(\S+:\d+)").group(1)


def initiate(name, *flags, fails=False, env=None):
    done = run([TEBENCH, *SMALL, f"--target_seg_name={name}", *flags], env=env)
    text = done.stdout.decode() + done.stderr.decode()
    check_equal(done.returncode, 1 if fails else 0, f"exit status of {flags}: {text}")
    return text


def every_operation_verified(closing, scratch):
    process, name = target(closing)
    for xport in ("--xport_type=tcp", "--xport_type=shm"):
        for operation in ("read", "write", "mix"):
            text = initiate(name, f"--op_type={operation}", "--check_consistency", "--start_block_size=5000",
                            "--max_block_size=5000", "--start_batch_size=3", "--max_batch_size=3",
                            "--start_num_threads=2", "--max_num_threads=2", "--seed=7", xport)
            wrong = re.search(r"verified: (\d+) blocks, (\d+) wrong", text)
            check(wrong and int(wrong[1]) >= 6 and int(wrong[2]) == 0, text)
            check("warning: every byte is made and compared" in text, text)
    check_equal(process.stop(15), 0, "the target's exit status")


def bytes_of_another_are_wrong(closing, scratch):
    """Two write over each other, which --verify of both must see."""
    _, name = target(closing)
    flags = [f"--target_seg_name={name}", "--op_type=mix", "--check_consistency", "--start_block_size=1MB",
             "--max_block_size=1MB", "--xport_type=tcp", "--duration=2"]
    both = [Process([TEBENCH, *SMALL, *flags, f"--seed={seed}"]) for seed in (1, 2)]
    closing += both
    said = []
    for process in both:
        status, text = process.stop(0), process.output()
        wrong = int(re.search(r"verified: \d+ blocks, (\d+) wrong", text)[1])
        check_equal(status, 1 if wrong else 0, text)
        said.append(wrong)
    check(sum(said) > 0, f"wrong blocks {said}")


def sweeps(closing, scratch):
    lines = scratch / "lines.jsonl"
    _, name = target(closing)
    text = initiate(name, "--start_block_size=4096", "--max_block_size=8192", "--start_batch_size=1",
                    "--max_batch_size=2", "--start_num_threads=1", "--max_num_threads=2", "--notifi",
                    f"--qos_output_jsonl={lines}")
    rows = [tuple(map(int, row[:3])) for row in ROW.findall(text)]
    check_equal(rows, [(t, k, b) for t in (1, 2) for k in (4096, 8192) for b in (1, 2)], "configurations")
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    check_equal([(r["threads"], r["block_size"], r["batch_size"]) for r in records], rows, "JSON lines")
    for r in records:
        check_equal(r["bytes"], r["operations"] * r["block_size"] * r["batch_size"], "bytes")
        check(r["operations"] > 0 and r["failed"] == 0 and r["late"] == 0, r)
        check(0 < r["p50_us"] <= r["p99_us"] <= r["p999_us"], r)


def what_does_not_fit_is_left_out(closing, scratch):
    _, name = target(closing)
    text = initiate(name, "--start_block_size=8MB", "--max_block_size=32MB")
    check_equal(len(ROW.findall(text)), 2, "rows")
    check("left out: 33554432 bytes a thread" in text, text)


def classes(closing, scratch):
    lines = scratch / "lines.jsonl"
    _, name = target(closing)
    workload = [{"name": "get", "threads": 2, "block_size": 4096, "batch_size": 1, "intent_type": "foreground_get",
                 "slo_us": 1000000, "weight": 4, "isolated_gbps": 100},
                {"name": "save", "threads": 1, "block_size": 65536, "batch_size": 4, "intent_type": "checkpoint",
                 "weight": 1}]
    text = initiate(name, "--workload_classes_json=" + json.dumps(workload), "--op_type=mix", "--check_consistency",
                    f"--qos_output_jsonl={lines}", "--qos_link_capacity_gbps=100")
    record = json.loads(lines.read_text())
    check_equal([c["name"] for c in record["classes"]], ["get", "save"], "classes")
    check_equal(sum(c["bytes"] for c in record["classes"]), record["bytes"], "bytes of the classes")
    check_equal(record["classes"][0]["slo_attainment"], 1.0, "attainment of a second")
    check(0 < record["jain_fairness"] <= 1 and 0 < record["classes"][0]["isolation_leakage"] < 1, record)
    check(" of the link" in text and ", 0 wrong" in text, text)
    text = initiate(name, "--qos_classes=a:1:100:1,b:2:100:2:5", "--max_block_size=4096")
    check(re.search(r"^ +b +2 ", text, re.M), text)


def deadlines(closing, scratch):
    _, name = target(closing)
    text = initiate(name, "--deadline_us=1", "--start_block_size=4MB", "--max_block_size=4MB", "--xport_type=tcp")
    check(int(re.search(r"(\d+) past their deadline, 0 failed", text)[1]) > 0, text)


def the_configuration_repeats_the_run(closing, scratch):
    _, name = target(closing)
    first = initiate(name, "--max_block_size=4096", "--qos_classes=a:1:5:1")
    command = shlex.split(re.search(r"^configuration: tebench (.*)$", first, re.M)[1])
    check("--seed=1" in command and f"--target_seg_name={name}" in command, command)
    again = run([TEBENCH, *command])
    check_equal(again.returncode, 0, again.stderr)
    check_equal(shlex.split(re.search(r"^configuration: tebench (.*)$", again.stdout.decode(), re.M)[1]), command,
                "configuration")
    slow = initiate(name, "--max_block_size=4096", env={"MC_FORCE_TCP": "1"})
    check("warning: MC_FORCE_TCP" in slow and "measures latency" in slow, slow)
    for xport, warned in (("tcp", True), ("shm", True), ("", False)):
        text = initiate(name, "--max_block_size=4096", f"--xport_type={xport}", env={"MC_TENT_CONF": "{}"})
        check_equal("warning: MC_TENT_CONF does not count" in text, warned, f"a warning with {xport}: {text}")


def what_is_wrong_is_named(closing, scratch):
    _, name = target(closing)
    for flags, said in ((["--seg_type=VRAM"], "no such GPU can be used: libcuda.so.1"),
                        (["--seg_type_mix=dram,hbm"], "DRAM and VRAM are known"),
                        (["--seg_type_mix=,"], "seg_type_mix: no memory is named"), (["--start_block_size=2MB", "--max_block_size=1MB"], "sweep"),
                        (["--qos_classes=a:0:1:1"], "class a needs"), (["--qos_classes=a:1"], "\"a:1\" is not name"),
                        (["--qos_classes=a:1:1:1,a:1:1:1"], "twice"), (["--workload_classes_json=[{]"], "column"),
                        (["--workload_classes_json=[{\"name\":\"x\",\"threads\":1}]"], "block_size"),
                        (["--qos_classes=a:1:1:1", "--qos_classes_json=[]"], "give one of"),
                        (["--xport_type=nvlink"], "there is no transport nvlink on this machine, only local, shm"),
                        (["--xport_type=t\"p"], "there is no transport t\"p"),
                        (["--target_offset=1GB"], "cannot be used"), (["--tent_intent_type=x"], "tent_intent_type")):
        check(said in initiate(name, *flags, fails=True), f"{flags} does not say {said}")
    check("cannot be used" in initiate("127.0.0.1:1", fails=True), "no target")


def the_other_bench(closing, scratch):
    bench, flags = bin_dir() / "transfer_engine_bench", ["--buffer_size=1MB", "--threads=2", "--batch_size=4",
                                                         "--local_server_name=127.0.0.1", "--block_size=4096"]
    process = Process([bench, "--mode=target", *flags])
    closing.append(process)
    name = process.wait_for(r"listening on (\S+:\d+)").group(1)
    done = run([bench, f"--segment_id={name}", *flags, "--duration=1", "--verify", "--seed=3"])
    text = done.stdout.decode()
    check_equal(done.returncode, 0, done.stderr)
    check("Verified: 0 blocks wrong" in text and "warning: every byte" in text, text)
    check(re.search(r"^configuration: transfer_engine_bench .*--seed=3 ", text, re.M), text)


def one_transport_moves_everything(closing, scratch):
    bench, small = bin_dir() / "transfer_engine_bench", ["--buffer_size=1MB", "--threads=1", "--batch_size=4", "--duration=1",
                                                         "--local_server_name=127.0.0.1", "--block_size=4096"]
    process = Process([bench, "--mode=target", "--protocol=auto", *small])
    closing.append(process)
    name = process.wait_for(r"listening on (\S+:\d+)").group(1)

    def initiate(*flags, fails=False):
        done = run([bench, f"--segment_id={name}", "--verify", *small, *flags])
        text = done.stdout.decode() + done.stderr.decode()
        check_equal(done.returncode, 1 if fails else 0, f"exit status of {flags}: {text}")
        return text
    for protocol in ("tcp", "shm", "auto"):
        check("Verified: 0 blocks wrong" in initiate(f"--protocol={protocol}"), protocol)
    # No way but the one asked for: files are no memory of a peer.
    check("a transfer failed" in initiate("--protocol=file", fails=True), "a transport that does not lead there")
    check("there is no transport nvlink" in initiate("--protocol=nvlink", fails=True), "a transport that is not there")
    matrix = scratch / "matrix.json"
    matrix.write_text('{"cpu:0": [["mlx5_7"], oops]}')
    broken = [f"--nic_priority_matrix={matrix}", "--device_name=mlx5_7"]
    check(f"{matrix}: line 1" in initiate("--protocol=auto", *broken, fails=True), "a matrix that cannot be read")
    check("Verified: 0 blocks wrong" in initiate("--protocol=tcp", *broken), "tcp looks at no cards")
    for service in ("etcd://127.0.0.1:1", "127.0.0.1:1", "redis://127.0.0.1:1", "http://127.0.0.1:1/metadata"):
        check("cannot be reached" in initiate(f"--metadata_server={service}", fails=True), f"nobody at {service}")
    check("metadata service not supported" in initiate("--metadata_server=zoo://keeper", fails=True), "a service of another kind")


def driver_of(scratch):
    """An environment in which programs find a driver with four GPUs."""
    where = scratch / "driver"
    where.mkdir(exist_ok=True)
    if not (where / "libcuda.so.1").exists():
        (where / "libcuda.so.1").symlink_to(bin_dir().parent / "tests/standins/libstandin_cuda.so")
    return {"LD_LIBRARY_PATH": f"{where}:{os.environ.get('LD_LIBRARY_PATH', '')}"}


def memory_of_gpus(closing, scratch):
    env = driver_of(scratch)

    def lend(*flags):
        process = Process([TEBENCH, *SMALL, *flags], env=env)
        closing.append(process)
        return process, process.wait_for(r"--target_seg_name=(\S+:\d+)").group(1)

    shape = ["--check_consistency", "--start_block_size=2000000", "--max_block_size=2000000", "--start_batch_size=2",
             "--max_batch_size=2", "--start_num_threads=3", "--max_num_threads=3"]
    all_gpus, name = lend("--seg_type=VRAM", "--local_gpu_id=-1")
    check("memory: VRAM cuda:0, VRAM cuda:1, VRAM cuda:2, VRAM cuda:3: 16777216 bytes each" in all_gpus.output(),
          all_gpus.output())
    _, mixed = lend("--seg_type_mix=dram,vram", "--local_gpu_id=3")
    for xport in ("", "tcp", "shm"):
        for there, flags, here in ((name, ["--seg_type=VRAM", "--target_gpu_id=2"], "VRAM cuda:0:"),
                                   (name, ["--seg_type=DRAM", "--op_type=mix"], "DRAM cpu:0:"),
                                   (mixed, ["--seg_type_mix=vram,dram", "--op_type=write", "--local_gpu_id=1"],
                                    "VRAM cuda:1, DRAM cpu:0:")):
            text = initiate(there, *shape, *flags, f"--xport_type={xport}", env=env)
            wrong = re.search(r"verified: (\d+) blocks, (\d+) wrong", text)
            check(wrong and int(wrong[1]) >= 6 and int(wrong[2]) == 0 and f"memory: {here}" in text, text)
    for flags, more, said in ((["--seg_type=VRAM", "--local_gpu_id=4"], {}, "this machine has 4, from 0 on"),
                              (["--seg_type=VRAM"], {"STANDIN_CUDA_DEVICES": "0"}, "no device (CUDA_ERROR_NO_DEVICE)"),
                              (["--seg_type=VRAM"], {"STANDIN_CUDA_ALLOC": "0"}, "16777216 bytes of memory: ")):
        text = initiate(name, *flags, fails=True, env={**env, **more})
        check(said in text, text)


def memory_of_gpus_in_the_other_bench(closing, scratch):
    env = driver_of(scratch)
    small = ["--buffer_size=2MB", "--threads=3", "--batch_size=4", "--local_server_name=127.0.0.1", "--block_size=70000"]
    bench = bin_dir() / "transfer_engine_bench"

    def start(memory, *flags, env=env):
        process = Process([bench, "--mode=target", "--protocol=auto", *small, *flags], env=env)
        closing.append(process)
        name = process.wait_for(r"listening on (\S+:\d+)").group(1)
        check(f"memory: {memory}: " in process.output(), process.output())
        return process, name

    def initiate_to(name, *flags, fails=False, env=env):
        done = run([bench, f"--segment_id={name}", "--verify", "--duration=1", *small, *flags], env=env)
        text = done.stdout.decode() + done.stderr.decode()
        check_equal(done.returncode, 1 if fails else 0, f"exit status of {flags}: {text}")
        check(fails or "Verified: 0 blocks wrong" in text, text)
        return text

    # What upstream's program takes without a word is a GPU's memory, where there is one.
    target_process, name = start("VRAM cuda:0")
    check(" --use_vram=true " in target_process.output(), target_process.output())
    for protocol in ("tcp", "auto"):
        for operation in ("read", "write"):
            for memory, flags in (("VRAM cuda:3", ["--gpu_id=3"]), ("DRAM *", ["--nouse_vram"]),
                                  ("VRAM cuda:0, VRAM cuda:1, VRAM cuda:2, VRAM cuda:3", ["--gpu_id=-1"])):
                text = initiate_to(name, f"--protocol={protocol}", f"--operation={operation}", *flags)
                check(f"memory: {memory}: " in text, text)
    _, many = start("VRAM cuda:0, VRAM cuda:1, VRAM cuda:2, VRAM cuda:3", "--gpu_id=-1")
    initiate_to(many, "--protocol=auto", "--gpu_id=-1")
    # Without a GPU: what was asked for by name is an error, the default is the host's memory, and said to be.
    none = {**env, "STANDIN_CUDA_DEVICES": "0"}
    _, host = start("DRAM *", env=none)
    text = initiate_to(host, "--protocol=auto", env=none)
    check("no GPU can be used, so the memory is DRAM: " in text and " --use_vram=false " in text, text)
    for flag in ("--use_vram", "--gpu_id=0"):
        check("CUDA_ERROR_NO_DEVICE" in initiate_to(host, flag, fails=True, env=none), flag)
    check("this machine has 4, from 0 on" in initiate_to(host, "--gpu_id=7", fails=True), "a GPU that is not there")


os.environ.pop("MC_FORCE_TCP", None)
main(every_operation_verified, bytes_of_another_are_wrong, sweeps, what_does_not_fit_is_left_out, classes, deadlines,
     memory_of_gpus, memory_of_gpus_in_the_other_bench, the_configuration_repeats_the_run, what_is_wrong_is_named, the_other_bench,
     one_transport_moves_everything)
