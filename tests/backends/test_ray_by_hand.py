"""A cluster as people start it, with ``ray start``, and a job that is submitted to it; its head is lost, and the run
goes on on another cluster. Takes about a minute: HOPFLEET_LONG=1 runs it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hopfleet.domain.messages import Finish, RunStarted, UnitFinished
from hopfleet.errors import JournalError
from hopfleet.files import digest
from hopfleet.results import Results
from hopfleet.store.folder import RunFolder
from hopfleet.store.journal import Journal

pytest.importorskip("ray")
pytest.importorskip("opencensus", reason="jobs need ray[default]")
pytestmark = [
    pytest.mark.skipif(not os.environ.get("HOPFLEET_LONG"), reason="HOPFLEET_LONG=1 runs it"),
    pytest.mark.filterwarnings("default"),
]

SOURCE = os.pathsep.join(
    [str(Path(__file__).parent.parent.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
PATIENCE = 120.0

SCRIPT = """
    import sys
    import hopfleet as hop
    from hopfleet.demo import SPACE, Digits, data

    train, valid = data()
    hop.Experiment(
        Digits(), train=train, valid=valid, space=SPACE, search=hop.Random(trials=4, max_epochs=12),
        metric="accuracy", mode="max", partitions=2, order="fixed", name=sys.argv[1], backend=sys.argv[2],
        workers=2, device="cpu",
    ).fit(quiet=True)
"""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


class Cluster:
    """Two nodes at loopback addresses, started by hand, with a token and a dashboard that takes jobs."""

    def __init__(self, home: Path, token: str) -> None:
        self.port, self.board = free_ports(2)
        self.environment = {
            **os.environ,
            "HOPFLEET_HOME": str(home),
            "PYTHONPATH": SOURCE,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_worker_niceness": "0",
            "RAY_ADDRESS": f"127.0.0.1:{self.port}",
        }
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        head = ("--head", f"--port={self.port}", f"--dashboard-port={self.board}", "--dashboard-host=127.0.0.1")
        self._start(*head, "--node-ip-address=127.0.0.1", "--num-cpus=1")
        wait_until(lambda: _answers(self.port) and _answers(self.board))
        self._start(f"--address=127.0.0.1:{self.port}", "--node-ip-address=127.0.0.1", "--num-cpus=1")
        wait_until(lambda: self.doctor().count("; as here") == 2)

    def _start(self, *options: str) -> None:
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *options]
        environment = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"}
        self._running.append(subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL))

    def doctor(self) -> str:
        words = [sys.executable, "-m", "hopfleet", "doctor", "--ray"]
        return subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False).stdout

    def submit(self, *words: str) -> None:
        ray = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit"]
        options = ["--address", f"http://127.0.0.1:{self.board}", "--no-wait", "--"]
        environment = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"}
        subprocess.run([*ray, *options, *words], env=environment, check=True)

    def lose(self) -> None:
        """All at once, as when the power fails: what was started by hand, and whatever that has started."""
        for process in self._running:
            for pid in (process.pid, *descendants(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        self._running.clear()


def descendants(pid: int) -> list[int]:
    """Children, their children and so on."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    children = [int(word) for word in found.stdout.split()]
    return [*children, *(each for child in children for each in descendants(child))]


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


@contextlib.contextmanager
def cluster(home: Path, token: str) -> Iterator[Cluster]:
    started = Cluster(home, token)
    try:
        started.start()
        yield started
    finally:
        started.lose()


def messages(folder: RunFolder, kind: type) -> list[object]:
    try:
        with contextlib.closing(Journal(folder.journal_file)) as journal:
            return [message for _, _, message in journal.read() if isinstance(message, kind)]
    except JournalError:
        return []


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def fingerprints(folder: RunFolder) -> dict[str, str]:
    return {trial.id: digest(trial.last_checkpoint) for trial in Results(folder).trials}


def test_a_job_whose_cluster_is_lost_goes_on_on_another(own_home: Path, tmp_path: Path) -> None:
    script = tmp_path / "experiment.py"
    script.write_text(textwrap.dedent(SCRIPT))
    alone, folder = RunFolder(own_home / "alone"), RunFolder(own_home / "job")
    with cluster(own_home, "a token of the first") as first:
        first.submit(sys.executable, str(script), "job", "ray")
        wait_until(lambda: len(messages(folder, UnitFinished)) >= 20)
        first.lose()
    before = len(messages(folder, UnitFinished))
    with cluster(own_home, "a token of the second") as second:
        words = [sys.executable, "-m", "hopfleet", "resume", "job"]
        subprocess.run(words, env=second.environment, check=True, timeout=PATIENCE)
    assert len(messages(folder, RunStarted)) == 2
    assert messages(folder, Finish)[-1].complete  # type: ignore[attr-defined]
    assert before < len(messages(folder, UnitFinished)) <= 4 * 12 * 2 + 4, "what was done counts"
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    subprocess.run([sys.executable, str(script), "alone", "local"], env=environment, check=True, timeout=PATIENCE)
    assert fingerprints(folder) == fingerprints(alone)
