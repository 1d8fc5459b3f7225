"""A Ray cluster on hosts of its own: network namespaces with links that can be cut, a head that can be restarted.

The head keeps the cluster's state in Redis if asked to. The driver has a host without CPUs for workers, so that its
link, the head and the workers can fail one at a time.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paradigms.network import Network, missing
from tests.helpers.cluster.started import RAY, kill, wait_until
from tests.helpers.processes import ROOT, environment

HEAD, DRIVER, STORAGE, STATE = "head", "driver", "storage", "state"
WORKERS = ("one", "two")
PATIENCE = 400.0
GCS, REDIS, S3 = 6379, 6380, 8001
RATE = 1000.0
"""Mbit/s of each link."""

needs_hosts = pytest.mark.skipif(bool(missing()), reason="; ".join(missing()))
REDIS_SERVER = (
    shutil.which("redis-server") or shutil.which(Path(__file__).parents[3] / "build/redis/redis-server") or ""
)
"""The installed one, or the one that tools/install_redis.sh has found."""
needs_redis = pytest.mark.skipif(not REDIS_SERVER, reason="needs Redis: bash tools/install_redis.sh")

SCRIPT = """
    import functools, json, sys
    import ray
    from tests.helpers.cluster.chained import chained
    from tests.helpers.cluster.started import fingerprints
    import hopfleet as hop

    told = json.loads(sys.argv[1])
    # Ray looks for a node among the processes of all hosts.
    ray.init = functools.partial(ray.init, _node_ip_address=told["host"])
    backend = hop.Ray(**told["ray"]) if told["ray"] else "local"
    experiment = chained(told["name"], backend, workers=2, epochs=told["epochs"], seconds=told["seconds"])
    results = experiment.fit(quiet=True)
    print(json.dumps(fingerprints(results.folder)))
"""


class Hosts:
    """The hosts of one cluster."""

    def __init__(self, network: Network, folder: Path, home: Path, more: Mapping[str, str]) -> None:
        self.network, self._folder, self.home = network, folder, home
        self.address = f"{network.addresses[HEAD]}:{GCS}"
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._others: list[subprocess.Popen[str]] = []
        self._environment = {
            **{name: value for name, value in environment().items() if not name.startswith("RAY_")},
            "HOPFLEET_HOME": str(home),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "a token of these hosts",
            "RAY_worker_niceness": "0",
            "RAY_enable_metrics_collection": "0",
            "REPORTER_UPDATE_INTERVAL_MS": "3600000",
            "AWS_ENDPOINT_URL": f"http://{network.addresses[STORAGE]}:{S3}",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
            **more,
        }

    def start(self, host: str) -> None:
        """Start a Ray node on a host."""
        head = ("--head", f"--port={GCS}", "--include-dashboard=false", f"--temp-dir={self._folder}")
        # Ray takes the processes of all hosts for its own; the head sees its own ones only, so that it can start again.
        inside = ("unshare", "--pid", "--fork", "--mount-proc") if host == HEAD else ()
        words = [
            *(*inside, *RAY, "start", "--block", "--disable-usage-stats", "--include-log-monitor=false"),
            *(f"--node-ip-address={self.network.addresses[host]}", f"--num-cpus={int(host in WORKERS)}"),
            "--object-store-memory=100000000",
            *(head if host == HEAD else (f"--address={self.address}",)),
        ]
        said = self._folder / f"{host}-{len(list(self._folder.glob('*.txt')))}.txt"
        with said.open("w") as file:
            process = self.network.start(host, words, env=self._environment, stdout=file, stderr=subprocess.STDOUT)
        self._running[host] = process
        # Ray says how it can be stopped when all its processes are up.
        wait_until(lambda: "--block" in said.read_text() or process.poll() is not None)
        assert process.poll() is None, said.read_text()

    def serve(self, host: str, *words: str) -> subprocess.Popen[str]:
        """Start another program on a host."""
        started = self.network.start(
            host, words, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self._folder
        )
        self._others.append(started)
        return started

    def serve_bucket(self, name: str) -> None:
        """Start an object store with one bucket on the host of the storage."""
        self.serve(STORAGE, sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(S3))
        make = f"import s3fs; s3fs.S3FileSystem().mkdir({name!r})"

        def made() -> bool:
            return self.serve(STORAGE, sys.executable, "-c", make).wait() == 0

        wait_until(made)

    def drive(self, name: str, *, epochs: int, host: str = DRIVER, **ray: Any) -> None:
        """Begin to run an experiment on the driver's host; without options of Ray, on that host alone."""
        # Units on the cluster are long enough for the run to outlast all outages; the bits do not depend on it.
        self.run(SCRIPT, {"name": name, "epochs": epochs, "ray": ray, "seconds": 0.15 if ray else 0.0}, host)

    def run(self, script: str, told: Mapping[str, Any], host: str = DRIVER) -> None:
        """Begin to run a script that is ``told`` something, and the address of its host, as JSON."""
        arguments = json.dumps({**told, "host": self.network.addresses[host]})
        words = [sys.executable, "-c", textwrap.dedent(script), arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._driver = self.network.start(host, words, env=self._environment, **pipes)

    @property
    def driver_ended(self) -> bool:
        return self._driver.poll() is not None

    def said(self, code: int = 0) -> str:
        """Wait for the end of the driver; return its last line, or the error that it has ended with."""
        out, error = self._driver.communicate(timeout=PATIENCE)
        assert self._driver.returncode == code, error
        return error if code else out.splitlines()[-1]  # Ray may have said something before

    def lose(self, host: str) -> None:
        """End everything that Ray runs on a host, at once."""
        for pid in self.network.processes(host):
            kill(pid)
        self._running.pop(host).wait()

    def close(self) -> None:
        for host in self.network.addresses:
            self.network.clear(host)
        for process in (*self._running.values(), *self._others):
            process.wait()


def recommended() -> dict[str, str]:
    """The settings of Ray in deploy/by-hand.md."""
    text = (ROOT / "deploy" / "by-hand.md").read_text()
    found = dict(re.findall(r"^export (RAY_(?:health|gcs)\w+)=(\d+)", text, re.MULTILINE))
    assert len(found) == 3
    return found


@contextlib.contextmanager
def hosts(home: Path, *, redis: bool = False, **more: str) -> Iterator[Hosts]:
    """Start a head, a node for the driver and two nodes with a CPU each."""
    names = (HEAD, DRIVER, STORAGE, STATE, *WORKERS)
    # A short path, because it holds sockets.
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        Network(dict.fromkeys(names, RATE)) as network,
    ):
        if redis:
            more = {**more, "RAY_REDIS_ADDRESS": f"{network.addresses[STATE]}:{REDIS}"}
        made = Hosts(network, Path(folder), home, more)
        try:
            if redis:
                made.serve(STATE, REDIS_SERVER, "--port", str(REDIS), "--protected-mode", "no", "--save", "")
            for host in (HEAD, DRIVER, *WORKERS):
                made.start(host)
            yield made
        finally:
            made.close()
