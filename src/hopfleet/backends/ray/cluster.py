"""The Ray cluster as seen from the driver: how to reach it, and which nodes it has."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any

from hopfleet.backends.ray.placement import Node
from hopfleet.errors import MissingExtra, UsageError, describe

REACH_SECONDS = 3.0
"""Seconds without an answer after which a cluster counts as absent."""


TRY_SECONDS = 0.7
"""Minimum seconds between two attempts to connect."""

RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Variable with the seconds after which Ray ends a process that cannot reach the head; Ray reads it on import."""

RECONNECT_SECONDS, RAY_RECONNECT_SECONDS = 3600, 60
"""The value of that variable here, so that a run ends by its own limits, and Ray's default."""

EMPTY_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""A frame of HTTP/2 (RFC 9113): the first that each side sends is of this type, the fourth byte."""

HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + EMPTY_SETTINGS
"""The first bytes that a client sends."""


def require_ray() -> Any:
    if importlib.util.find_spec("ray") is None:
        raise MissingExtra("Ray", "ray")
    if "ray" not in sys.modules:
        os.environ.setdefault(RECONNECT, str(RECONNECT_SECONDS))
    import ray

    return ray


def reconnect_seconds() -> float:
    """Return the seconds without a head after which Ray ends this process."""
    return float(os.environ.get(RECONNECT, RAY_RECONNECT_SECONDS))


def connect(address: str | None, *, namespace: str | None = None, runtime_env: Mapping[str, Any] | None = None) -> bool:
    """Join a cluster, or start one on this machine; return False if this process had joined it before.

    Without an address, that is the cluster of ``RAY_ADDRESS`` or the last one on this machine; if it is gone, one
    starts.
    """
    ray = require_ray()
    if ray.is_initialized():
        _check_same(ray, address)
        return False
    if address is not None and address.startswith("ray://"):
        raise UsageError(
            f"address={address!r}: Ray's client protocol is not supported; run the script on a node of the cluster, "
            "e.g. with `ray job submit`"
        )
    known = _known_address(address)
    if known is not None:
        _check_reachable(address, known)
    try:
        # Without an address, Ray would try a cluster that is gone for minutes.
        where = known if known is not None else "local"
        joined = {"address": where, "namespace": namespace, "runtime_env": runtime_env and dict(runtime_env)}
        ray.init(**joined, log_to_driver=False, logging_level="ERROR", **_start_options(known))
    except Exception as error:
        if _is_refused(error):
            raise UsageError(
                f"address={address or known!r}: the cluster refuses the token of this process; set RAY_AUTH_MODE=token "
                "and RAY_AUTH_TOKEN or ~/.ray/auth_token to the token of the cluster"
            ) from error
        raise UsageError(
            f"address={address!r}: no Ray cluster could be joined ({describe(error)}); start one with "
            "`ray start --head`, or leave address= out to start one on this machine"
        ) from error
    return True


def _is_refused(error: BaseException | None) -> bool:
    """Whether Ray could not be joined because of a missing or wrong token, which only some causes of the error tell."""
    while error is not None:
        if "AuthenticationError" in f"{type(error).__name__}: {error}":
            return True
        error = error.__cause__ or error.__context__
    return False


def nodes() -> list[Node]:
    """Return all live nodes, with their free resources, in the same order each time."""
    ray = require_ray()
    # Ray has no public function for the free resources of each node.
    free = ray._private.state.available_resources_per_node()
    found = [_node(info, free.get(info["NodeID"], {})) for info in ray.nodes() if info["Alive"]]
    return sorted(found, key=lambda node: (node.address, node.id))


def living() -> list[Node]:
    """Return the nodes that answer: Ray calls a node alive for a while after it is gone."""
    found = nodes()
    with ThreadPoolExecutor(max(1, len(found))) as threads:
        verdicts = list(threads.map(try_raylet, found))
    return [node for node, verdict in zip(found, verdicts, strict=True) if verdict is Reachability.ANSWERS]


class Reachability(Enum):
    """The outcome of a connection to a raylet or to the head."""

    ANSWERS = ""
    GONE = "its raylet is gone"
    UNREACHABLE = "its host cannot be reached"


class Line:
    """An idle connection that is kept open: it closes as soon as the raylet ends.

    Processes on a node continue for a while without their raylet, and Ray is slow to notice.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setblocking(False)

    @property
    def holds(self) -> bool:
        """Whether the connection is still open. Data from the other side is ignored."""
        try:
            return self._connection.recv(1 << 12) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        self._connection.close()


class Peer:
    """A server of Ray, watched through connections to its port."""

    def __init__(self, address: str, port: int) -> None:
        self.address, self._port = address, port
        self.verdict = Reachability.ANSWERS
        #: When the server last accepted a connection, and when a connection was last tried.
        self.answered = time.monotonic()
        self._tried = 0.0
        self._trying = False
        self._line: Line | None = None
        self._closed = False

    def check(self, *, anew: bool) -> None:
        """Try in the background whether the server answers, if ``anew`` or if it has closed the last connection."""
        now = time.monotonic()
        if self._trying or now - self._tried < TRY_SECONDS or (not anew and self._line and self._line.holds):
            return
        self._trying, self._tried = True, now
        threading.Thread(target=self._attempt, daemon=True, name="hopfleet-peer").start()

    def _attempt(self) -> None:
        verdict, line = call(self.address, self._port)
        before, self._line, self.verdict = self._line, line, verdict
        if verdict is Reachability.ANSWERS:
            self.answered = time.monotonic()
        self._trying = False
        if before is not None:
            before.close()
        if self._closed:
            self.close()

    def close(self) -> None:
        """Close the connection, also one that is just being made."""
        self._closed = True
        if self._line is not None:
            self._line.close()


def head() -> Peer:
    """Return the head of the cluster that this process has joined."""
    host, _, port = require_ray().get_runtime_context().gcs_address.rpartition(":")
    return Peer(host.strip("[]"), int(port))


def head_forgot() -> bool:
    """Whether the head was started again without the state of the cluster. Block or raise while there is no head.

    Call this before other functions that ask the head: they would end the process, since Ray takes that for a bug.
    """
    from ray.experimental.internal_kv import _internal_kv_exists

    try:
        _internal_kv_exists(b"hopfleet")
    except Exception as error:
        if "WrongClusterID" in str(error):
            return True
        raise
    return False


def call(address: str, port: int, timeout: float = 1.0) -> tuple[Reachability, Line | None]:
    """Open a new connection; return its outcome and the connection."""
    try:
        return Reachability.ANSWERS, Line(socket.create_connection((address, port), timeout))
    except ConnectionRefusedError:
        return Reachability.GONE, None
    except OSError:
        return Reachability.UNREACHABLE, None


def try_raylet(node: Node) -> Reachability:
    verdict, line = call(node.address, node.port)
    if line is not None:
        line.close()
    return verdict


def own_address() -> str:
    """Return the address of this machine, as Ray's nodes know it."""
    address: str = require_ray().util.get_node_ip_address()
    return address


def _node(info: dict[str, Any], free: dict[str, float]) -> Node:
    total = info["Resources"]
    kinds = [name.removeprefix("accelerator_type:") for name in total if name.startswith("accelerator_type:")]
    return Node(
        id=info["NodeID"],
        address=info["NodeManagerAddress"],
        port=info["NodeManagerPort"],
        cpus=total.get("CPU", 0.0),
        gpus=total.get("GPU", 0.0),
        free_cpus=free.get("CPU", 0.0),
        free_gpus=free.get("GPU", 0.0),
        kind=", ".join(kinds),
        free={name: amount for name, amount in free.items() if name not in ("CPU", "GPU")},
        labels=info.get("Labels") or {},
    )


def _check_same(ray: Any, address: str | None) -> None:
    joined = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", "local", joined):
        raise UsageError(
            f"address={address!r}: this process has joined the cluster at {joined}; call ray.shutdown() first"
        )


def _known_address(address: str | None) -> str | None:
    """Return the address of the cluster from the arguments, the environment or Ray; None to start one."""
    if address not in (None, "auto"):
        return None if address == "local" else address
    if os.environ.get("RAY_ADDRESS"):
        return None if os.environ["RAY_ADDRESS"] == "local" else os.environ["RAY_ADDRESS"]
    found = _last_address()
    if found is None and address == "auto":
        raise UsageError(
            "address='auto': no Ray cluster is known on this machine; start one with `ray start --head`, or leave "
            "address= out to start one for this run"
        )
    if found is None or address == "auto":
        return found
    if why := _unreachable(found):
        warnings.warn(
            f"the last Ray cluster of this machine, at {found}, does not answer ({why}): a cluster for this run starts "
            "on this machine",
            stacklevel=2,
        )
        return None
    return found


def _last_address() -> str | None:
    """Return the address of the last cluster on this machine, which may be long gone."""
    # No public function of Ray reads the file with the address and starts nothing.
    with contextlib.suppress(Exception):
        from ray._private.utils import read_ray_address

        found: str | None = read_ray_address()
        return found or None
    return None


def _start_options(known: str | None) -> dict[str, Any]:
    return {} if known is not None else {"include_dashboard": False}


def _check_reachable(address: str | None, known: str) -> None:
    if why := _unreachable(known):
        raise UsageError(
            f"address={address or known!r}: nothing answers at {known} ({why}); is the cluster running, and its port "
            "(6379 by default) open to this machine?"
        )


def _unreachable(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return "must be 'auto' or HOST:PORT"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS) as connection:
            return "" if _speaks_grpc(connection) else "another service uses this port"
    except OSError as error:
        return describe(error)


def _speaks_grpc(connection: socket.socket) -> bool:
    """Whether the other side is a gRPC server, as the head of a cluster is; the default port is also that of Redis."""
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return True
    connection.sendall(HTTP2_GREETING)
    answer = b""
    while len(answer) < len(EMPTY_SETTINGS) and (more := connection.recv(len(EMPTY_SETTINGS) - len(answer))):
        answer += more
    return len(answer) == len(EMPTY_SETTINGS) and answer[3] == EMPTY_SETTINGS[3]
