"""Hosts on one machine: network namespaces behind one switch, each with an address and a link of a given rate.

A host is a namespace with one interface, ``eth0``, a veth pair whose other end is a port of a bridge. Both ends are
shaped by a token bucket, so a link carries ``rate`` in each direction at once. The bridge has its own namespace:
nothing touches the machine's own network, and no host can reach the outside. The interface of a host counts the bytes
that the host sends and receives, headers and acknowledgements included.

Needs root, Linux, and iproute2. Names contain the id of the process that made them, so that several can exist at
once, and leftovers of a killed process are removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.processes import PROC, processor, proportional

PREFIX = "hopfleet"
SUBNET = "10.77.0"
BURST = 32_000
"""Bytes that may leave at once: less than a large segment, so that frames on the wire have a realistic size."""

QUEUE = 0.05
"""Seconds that a frame may wait in a queue before it is dropped."""


def missing() -> list[str]:
    """Return what this machine lacks for creating hosts, in words."""
    lacks = []
    if sys.platform != "linux":
        return ["Linux: network namespaces exist nowhere else"]
    if os.geteuid() != 0:
        lacks.append("root: run it with sudo, or in a container with --privileged")
    lacks += [f"{tool}: install iproute2" for tool in ("ip", "tc") if shutil.which(tool) is None]
    if lacks:
        return lacks
    for kind, words in _TRIALS.items():
        done = subprocess.run(["unshare", "--net", "sh", "-c", words], capture_output=True, text=True, check=False)
        if done.returncode:
            lacks.append(f"{kind}: the kernel says {done.stderr.strip()!r}")
    return lacks


_TRIALS = {
    "veth pairs": "ip link add one type veth peer name two",
    "bridges": "ip link add one type bridge",
    "tbf shaping": "tc qdisc add dev lo root tbf rate 1mbit burst 9kb latency 9ms",
}


_SCRIPT = """
set -e
hostname "$1"
mount -t tmpfs -o size=2g tmpfs /dev/shm
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/resolv.conf" /etc/resolv.conf
shift 2
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes sent and received by an interface."""

    sent: int = 0
    received: int = 0

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.sent - other.sent, self.received - other.received)


class Network:
    """Hosts by name, each with its rate in Mbit/s. Closing it ends all processes in them."""

    def __init__(self, rates: Mapping[str, float]) -> None:
        _sweep()
        self._tag = f"{PREFIX}-{os.getpid()}"
        self._switch = f"{self._tag}-switch"
        self.addresses = {host: f"{SUBNET}.{number}" for number, host in enumerate(rates, 1)}
        self._names = tempfile.TemporaryDirectory(prefix=f"{self._tag}-")
        _write_names(Path(self._names.name), self.addresses)
        try:
            _run("ip", "netns", "add", self._switch)
            self._in_switch("ip", "link", "add", "bridge", "type", "bridge")
            self._in_switch("ip", "link", "set", "bridge", "up")
            for number, (host, rate) in enumerate(rates.items(), 1):
                self._add(host, number, rate)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, host: str, number: int, rate: float) -> None:
        name, port = self._name(host), f"port{number}"
        _run("ip", "netns", "add", name)
        pair = ("type", "veth", "peer", "name", "eth0", "netns", name)
        self._in_switch("ip", "link", "add", port, *pair)
        self._in_switch("ip", "link", "set", port, "master", "bridge", "up")
        for words in (
            ("ip", "address", "add", f"{self.addresses[host]}/24", "dev", "eth0"),
            ("ip", "link", "set", "eth0", "up"),
            ("ip", "link", "set", "lo", "up"),
            # Ray and others find their own address through the default route.
            ("ip", "route", "add", "default", "dev", "eth0"),
        ):
            _run("ip", "netns", "exec", name, *words)
        bucket = ("tbf", "rate", f"{rate}mbit", "burst", str(BURST), "latency", f"{QUEUE * 1e3:g}ms")
        self._in_switch("tc", "qdisc", "add", "dev", port, "root", *bucket)
        _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", *bucket)

    # ------------------------------------------------------------------------------------------------ processes

    def start(self, host: str, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a process on a host, with its own host name and /dev/shm, as on a separate machine."""
        inside = ["unshare", "--uts", "sh", "-c", _SCRIPT, "sh", host, self._names.name, *words]
        command = ["ip", "netns", "exec", self._name(host), *inside]
        return subprocess.Popen(command, text=True, **options)

    def processes(self, host: str) -> list[int]:
        """Return the ids of all processes on a host."""
        return self._residents()[host]

    def _residents(self) -> dict[str, list[int]]:
        """Return the same for all hosts, without starting processes that would compete with the measured ones."""
        found: dict[str, list[int]] = {host: [] for host in self.addresses}
        homes = {Path(f"/run/netns/{self._name(host)}").stat().st_ino: host for host in self.addresses}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # it ended meanwhile
                    if host := homes.get(Path(f"/proc/{entry.name}/ns/net").stat().st_ino):
                        found[host].append(int(entry.name))
        return found

    def memory(self, host: str) -> int:
        """Return the bytes of a host's processes, with shared pages counted proportionally (PSS)."""
        return sum(map(proportional, self.processes(host)))

    def processor(self, host: str) -> float:
        """Return the processor seconds of a host's processes, with those of their ended children."""
        return sum(processor(PROC / str(pid), children=True) for pid in self.processes(host))

    def own_processor(self, hosts: Iterable[str]) -> dict[int, float]:
        """Return the same for some hosts by process, without ended children."""
        residents = self._residents()
        return {pid: processor(PROC / str(pid)) for host in hosts for pid in residents[host]}

    def clear(self, host: str) -> None:
        """End all processes on a host."""
        _kill(self._name(host))

    # -------------------------------------------------------------------------------------------------- the links

    def traffic(self) -> dict[str, Traffic]:
        """Return the bytes that each host has sent and received so far."""
        return {host: self._traffic(host) for host in self.addresses}

    def _traffic(self, host: str) -> Traffic:
        counters = [f"/sys/class/net/eth0/statistics/{name}_bytes" for name in ("tx", "rx")]
        sent, received = _run("ip", "netns", "exec", self._name(host), "cat", *counters).split()
        return Traffic(int(sent), int(received))

    def cut(self, host: str) -> None:
        """Take a host's link down; its processes continue."""
        self._in_switch("ip", "link", "set", self._port(host), "down")

    def mend(self, host: str) -> None:
        self._in_switch("ip", "link", "set", self._port(host), "up")

    def close(self) -> None:
        for host in self.addresses:
            _remove(self._name(host))
        _remove(self._switch)
        self._names.cleanup()

    def _port(self, host: str) -> str:
        return f"port{list(self.addresses).index(host) + 1}"

    def _name(self, host: str) -> str:
        return f"{self._tag}-{host}"

    def _in_switch(self, *words: str) -> None:
        _run("ip", "netns", "exec", self._switch, *words)


def _write_names(folder: Path, addresses: Mapping[str, str]) -> None:
    """Write the names of all hosts, and no name server: other lookups must fail at once instead of after minutes."""
    lines = ["127.0.0.1 localhost"]
    for host, address in addresses.items():
        lines += [f"{address} {host}", f"::ffff:{address} {host}"]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")


def _sweep() -> None:
    """Remove the namespaces of processes that are gone."""
    for line in _run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        tag, _, rest = name.partition("-")
        owner = rest.partition("-")[0]
        if tag == PREFIX and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _remove(name)


def _kill(name: str) -> None:
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    for pid in map(int, done.stdout.split()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _remove(name: str) -> None:
    _kill(name)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
