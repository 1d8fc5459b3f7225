"""Ray as people start it, with ``ray start``, in processes of their own at loopback addresses and with a token."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from hopfleet.errors import JournalError
from hopfleet.runs.results import Results
from hopfleet.store.folder import RunFolder
from hopfleet.store.journal import Journal
from hopfleet.support.files import digest
from tests.helpers.processes import environment

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
PATIENCE = 120.0


class Nodes:
    """Nodes of one cluster. Whatever was started ends with ``lose``."""

    def __init__(self, home: Path, token: str, **more: str) -> None:
        self.port, self.board, *self.others = free_ports(8)
        self.address = f"127.0.0.1:{self.port}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": environment()["PYTHONPATH"],
            "HOPFLEET_HOME": str(home),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_worker_niceness": "0",
            **more,
        }
        #: What processes have that are no nodes.
        self.inside = {**self.environment, "RAY_ADDRESS": self.address}
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, **more: str) -> None:
        words = [*RAY, "start", "--block", "--disable-usage-stats", *options]
        environment = {**self.environment, **more}
        self._running.append(subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL))

    def head(self, *options: str, **more: str) -> None:
        """With a dashboard that takes jobs."""
        board = ("--dashboard-host=127.0.0.1", f"--dashboard-port={self.board}")
        self.start("--head", f"--port={self.port}", "--node-ip-address=127.0.0.1", *board, *options, **more)
        wait_until(lambda: answers(self.port) and answers(self.board))

    def doctor(self) -> str:
        words = [sys.executable, "-m", "hopfleet", "doctor", "--ray"]
        return subprocess.run(words, env=self.inside, capture_output=True, text=True, check=False).stdout

    def run(self, words: Iterable[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words], env=self.inside, check=True, timeout=PATIENCE, text=True, **options)

    def pids(self) -> list[int]:
        """What was started by hand, and whatever that has started."""
        return [pid for process in self._running for pid in (process.pid, *descendants(process.pid))]

    def lose(self) -> None:
        """All at once, as when the power fails."""
        for pid in self.pids():
            kill(pid)
        for process in self._running:
            process.wait()
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.lose()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def descendants(pid: int) -> list[int]:
    """Children, their children and so on."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    children = [int(word) for word in found.stdout.split()]
    return [*children, *(each for child in children for each in descendants(child))]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_until(ready: Callable[[], bool], patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def messages(folder: RunFolder, *kinds: type) -> list[Any]:
    return list(dated(folder, *kinds).values())


def dated(folder: RunFolder, *kinds: type) -> Mapping[tuple[int, float], Any]:
    """By number, and when they were written down."""
    try:
        with contextlib.closing(Journal(folder.journal_file)) as journal:
            return {(number, when): message for number, when, message in journal.read() if isinstance(message, kinds)}
    except JournalError:
        return {}


def fingerprints(folder: RunFolder) -> dict[str, str]:
    return {trial.id: digest(trial.last_checkpoint) for trial in Results(folder).trials}
