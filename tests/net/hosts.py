"""Hosts that are network namespaces of this machine, all on one switch. Needs root; where namespaces are not permitted
the test is skipped, with the reason. Everything goes when the test ends: the kernel takes links and addresses with the
namespaces.
"""
import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from programs import Process, check  # noqa: E402


def ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True)


class Host:
    def __init__(self, net, index):
        self.space = f"{net.prefix}h{index}"
        self.net, self.index = net, index
        ip("netns", "add", self.space)
        near, far = f"{net.prefix}n{index}", f"{net.prefix}f{index}"
        ip("link", "add", near, "type", "veth", "peer", "name", far)
        ip("link", "set", near, "netns", self.space)
        ip("link", "set", far, "netns", net.switch)
        self.run("ip", "link", "set", near, "name", "eth0")
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "link", "set", "eth0", "up")
        ip("-n", net.switch, "link", "set", far, "master", "br0")
        ip("-n", net.switch, "link", "set", far, "up")
        self.v4, self.v6 = f"10.77.0.{index + 1}", f"fd77::{index + 1}"
        if "4" in net.families:
            self.run("ip", "addr", "add", f"{self.v4}/24", "dev", "eth0")
        if "6" in net.families:
            self.run("ip", "-6", "addr", "add", f"{self.v6}/64", "dev", "eth0", "nodad")
        else:
            self.run("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")

    def run(self, *args, **kwargs):
        return subprocess.run(["ip", "netns", "exec", self.space, *map(str, args)], check=True, capture_output=True, **kwargs)

    def call(self, args, input_bytes=None, timeout=120):
        return subprocess.run(["ip", "netns", "exec", self.space, *map(str, args)], input=input_bytes, capture_output=True,
                              timeout=timeout)

    def start(self, closing, *args):
        process = Process(["ip", "netns", "exec", self.space, *args])
        closing.append(process)
        return process

    def deaf_to(self, other):
        """Drops what comes from the other host; what goes there still goes."""
        rules = f"add table inet deaf\nadd chain inet deaf in {{ type filter hook input priority 0; }}\n"
        rules += f"add rule inet deaf in ip saddr {other.v4} drop\n" if "4" in self.net.families else ""
        rules += f"add rule inet deaf in ip6 saddr {other.v6} drop\n" if "6" in self.net.families else ""
        self.run("nft", "-f", "-", input=rules.encode())

    def hears_again(self):
        self.run("nft", "delete", "table", "inet", "deaf")


class Net:
    """`families`: "4", "6" or "46"."""
    count = 0

    def __init__(self, families, hosts):
        Net.count += 1
        self.families = families
        self.prefix = f"mc{os.getpid() % 100000}{chr(96 + Net.count)}"
        self.switch = f"{self.prefix}sw"
        self.hosts = []
        self.process = subprocess.CompletedProcess(["the network"], 0)  # as the other things that a test closes
        try:
            ip("netns", "add", self.switch)
            ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
            ip("-n", self.switch, "link", "set", "br0", "up")
            for i in range(hosts):
                self.hosts.append(Host(self, i))
        except BaseException:
            self.close()
            raise

    def output(self):
        return ""

    def address(self, host, family=None):
        return f"[{host.v6}]" if (family or self.families[-1]) == "6" else host.v4

    def close(self):
        spaces = [f"{self.prefix}h{i}" for i in range(16)] + [self.switch]
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        for space in spaces:
            if f"{space}" in [line.split()[0] for line in listed.splitlines() if line]:
                for pid in subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout.split():
                    os.kill(int(pid), signal.SIGKILL)
                subprocess.run(["ip", "netns", "del", space], capture_output=True)


def skip_unless_possible():
    """Exits 77 where namespaces, links between them or packet filters are not to be had."""
    try:
        net = Net("4", 2)
        try:
            net.hosts[0].deaf_to(net.hosts[1])
        finally:
            net.close()
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", None) or str(error).encode()
        print(f"skipped: network namespaces with packet filters are not possible here: {why.decode().strip()}")
        sys.exit(77)


class Cluster:
    """A master on the first host, a node on each of `nodes`."""

    def __init__(self, closing, build_bin, net, nodes, *flags, family=None, node_bytes="64MB"):
        self.net, self.bin = net, build_bin
        any_address = "0.0.0.0" if net.families == "4" else "::"
        master = net.hosts[0].start(closing, build_bin / "mooncake_master", "--port=50051", f"--rpc_address={any_address}",
                                    "--metrics_port=9003", f"--metrics_host={any_address}", *flags)
        master.wait_for("master ready")
        self.master = f"{net.address(net.hosts[0], family)}:50051"
        self.processes = {}
        for host in nodes:
            name = net.address(host, family)
            node = host.start(closing, build_bin / "mooncake", "node", f"--master={self.master}",
                              f"--segment_bytes={node_bytes}", f"--host={name}")
            check(node.wait_for(r"^node (\S+) lends").group(1).startswith(name + ":"), "the node's name is its address")
            self.processes[host] = node

    def mooncake(self, host, verb, *args, **kwargs):
        return host.call([self.bin / "mooncake", verb, f"--master={self.master}", *args], **kwargs)
