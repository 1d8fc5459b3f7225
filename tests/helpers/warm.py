"""Python processes that have imported PyTorch and Hopfleet already: forks of one warm process per test session.

A cold start takes about two seconds of processor time, most of it for the import of PyTorch; a fork takes milliseconds.
``Popen`` is ``subprocess.Popen`` for Python commands (``-m MODULE``, ``-c CODE``, ``SCRIPT``) with three differences:
the new process is a child of the warm process, ``/proc`` shows the command line and environment of the warm process,
and the modules in ``PRELOAD`` are imported already. Without a warm process, ``Popen`` starts processes cold.

The warm process starts at the first use and ends with the test session. Scripts run by tests find the warm process
through the environment variable ``HOPFLEET_TESTS_WARM``. Tests with Ray have a warm process of their own, which has
imported more.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from pathlib import Path
from typing import Any

from tests.helpers import processes

#: The interpreter of this process, whatever a test makes of ``sys.executable``.
PYTHON = sys.executable
#: The environment variable with the path of the warm process's socket; without it, processes start cold.
ADDRESS = "HOPFLEET_TESTS_WARM"
#: The most descriptors of a new process: the three standard ones, and inherited ones.
MOST_DESCRIPTORS = 16
#: Received descriptors are moved to this number and above, so that none lies where another one is wanted.
FIRST_SPARE = 512
#: Modules that new processes find imported. The import of none of them depends on a test's environment.
PRELOAD = (
    "torch",
    "hopfleet.worker.process",
    "hopfleet.worker.feeding.feed",
    "hopfleet.frameworks.torch.task",
    "hopfleet.backends.inline",
    "hopfleet.backends.local.backend",
    "hopfleet.cli",
    "hopfleet.experiment",
)
#: The environment variable of a test session whose tests all need one package: the package's name.
APART = "HOPFLEET_TESTS_APART"
#: Modules that new processes find imported as well in such a session, by the package.
PRELOAD_APART = {
    "jax": ("jax", "optax", "flax.nnx", "hopfleet.frameworks.jax.task"),
    "keras": ("hopfleet.frameworks.keras.task",),
    "lightning": ("hopfleet.frameworks.lightning.task",),
    "transformers": ("hopfleet.frameworks.transformers.task",),
}


class Popen(subprocess.Popen[Any]):
    """A process forked from the warm process, or a cold one if no warm process answers."""

    _connection: socket.socket | None = None

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        connection = None
        if isinstance(args, list) and args[0] == PYTHON and executable is None and preexec_fn is None:
            connection = _connect()
        if connection is None:
            super()._execute_child(args, executable, preexec_fn, *rest)  # type: ignore[misc]
            return
        _, inherited, folder, environment, _, _, _, *pipes = rest[:13]
        standard = [end if end != -1 else number for number, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = {
            "command": [os.fspath(word) for word in args[1:]],
            "environment": dict(os.environ if environment is None else environment),
            "folder": os.fspath(folder) if folder is not None else str(Path.cwd()),
            "descriptors": [0, 1, 2, *inherited],
        }
        socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [*standard, *inherited])
        self.pid = int(_read_line(connection))
        self._connection = connection
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """Return the process id and the status, like ``os.waitpid``; (0, 0) while the process runs."""
        if self._connection is None:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        self._connection.settimeout(0.0 if flags & os.WNOHANG else None)
        with contextlib.suppress(BlockingIOError):
            # Without a line the warm process is gone, and the status with it.
            status = int(_read_line(self._connection) or 0)
            self._connection.close()
            return self.pid, status
        return 0, 0

    def _internal_poll(self, *arguments: Any, **options: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(*arguments, **options)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid == self.pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def run(
    command: list[str],
    *,
    input: Any = None,  # noqa: A002
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = True,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end and capture its output, like ``subprocess.run``."""
    assert capture_output
    pipe = subprocess.PIPE
    source = subprocess.DEVNULL if input is None else pipe
    with Popen(command, stdin=source, stdout=pipe, stderr=pipe, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class Session:
    """A warm process of a test session, started at its first use; it imports ``more`` modules than ``PRELOAD``.

    It is itself a fork of the first one, if that runs.
    """

    def __init__(self, *more: str) -> None:
        self._more = more
        self._process: subprocess.Popen[Any] | None = None
        self._folder = ""

    def start(self) -> str:
        """Start the warm process unless it runs; put the path of its socket into the environment and return it."""
        if self._process is None:
            self._folder = tempfile.mkdtemp(prefix="hopfleet-warm-")
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(self._path)
                listener.listen(64)
                command = [sys.executable, "-m", __name__, str(listener.fileno()), *self._more]
                pipe, environment = subprocess.PIPE, {**processes.environment(), "OMP_NUM_THREADS": "1"}
                start = subprocess.Popen if self is session else Popen
                self._process = start(command, stdin=pipe, pass_fds=[listener.fileno()], env=environment)
        os.environ[ADDRESS] = self._path
        return self._path

    @property
    def _path(self) -> str:
        return str(Path(self._folder) / "socket")

    def end(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None
            os.environ.pop(ADDRESS, None)
            shutil.rmtree(self._folder)


def warm_fork_servers() -> None:
    """Let the local backend of this process get its fork servers from the warm process."""
    from hopfleet.backends.local import fork_server

    fork_server.Popen = Popen  # type: ignore[misc, assignment]


#: Set by the test session; processes that the session starts have the environment variable instead.
session: Session | None = None


def _connect() -> socket.socket | None:
    """Return a connection to the warm process; None if there is none."""
    path = session.start() if session is not None and ADDRESS not in os.environ else os.environ.get(ADDRESS)
    if not path:
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def _read_line(connection: socket.socket) -> bytes:
    """Return a line without its end, or nothing if the other side is gone."""
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(65536)
        if not piece:
            return b""
        line += piece
        connection.settimeout(None)
    return line[:-1]


# ------------------------------------------------------------------------------------------- the warm process


def serve(listener: socket.socket, more: list[str]) -> None:
    """Fork a process for each request, and report how the process ends, until the standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    for module in (*PRELOAD, *PRELOAD_APART.get(os.environ.get(APART, ""), ()), *more):
        importlib.import_module(module)
    warm_fork_servers()
    gc.freeze()
    gc.enable()
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    #: By the descriptor that becomes readable when a process ends: the client's connection and the process id.
    running: dict[int, tuple[socket.socket, int]] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            if key.fd in running:
                selector.unregister(key.fd)
                os.close(key.fd)
                _report(*running.pop(key.fd))
                continue
            connection, _ = listener.accept()
            request, descriptors = _request(connection)
            pid = os.fork()
            if pid == 0:
                selector.close()
                for descriptor, (other, _) in running.items():
                    os.close(descriptor)
                    other.close()
                connection.close()
                listener.close()
                _become(request, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            connection.sendall(f"{pid}\n".encode())
            ending = os.pidfd_open(pid)
            running[ending] = connection, pid
            selector.register(ending, selectors.EVENT_READ)


def _report(connection: socket.socket, pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    with connection, contextlib.suppress(OSError):
        connection.sendall(f"{status}\n".encode())


def _request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    message, descriptors, _, _ = socket.recv_fds(connection, 65536, MOST_DESCRIPTORS)
    while not message.endswith(b"\n"):
        message += connection.recv(65536)
    return json.loads(message), descriptors


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be the requested process, to its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    spare = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_SPARE) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(spare, request["descriptors"], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *sys.path]
    code = 0
    try:
        _execute(*request["command"])
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        if isinstance(asked.code, str):
            sys.stderr.write(f"{asked.code}\n")
    except Exception:
        traceback.print_exc()
        code = 1
    # As at the end of any process, less the time that it takes to take PyTorch apart.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _execute(kind: str, *arguments: str) -> None:
    """Do what ``python KIND ARGUMENTS`` does."""
    if kind == "-m":
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [kind, *arguments]
        sys.path.insert(0, str(Path(kind).parent))
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    os._exit(0)  # taking PyTorch apart takes long
