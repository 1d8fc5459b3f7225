"""The contracts of stores: the journal of a run, the requests that users make, and the saved model versions.

A store keeps what must survive the process that runs an experiment. The journal and the requests have one writing
process at a time, the holder of the run folder's lock, and any number of readers and requesting processes. Versions are
written by many workers at once, each save under a number of its own. ``hopfleet.testing.stores`` has a suite for each
contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hopfleet.domain.messages import Message, RequestAnswered, RequestMade
from hopfleet.domain.version_ref import VersionRef
from hopfleet.support.deprecation import deprecated

if TYPE_CHECKING:
    from hopfleet.store.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Request:
    """A request in the audit trail. ``granted`` is None, and ``text`` empty, until a run has answered the request."""

    number: int
    time: float  #: when the request was made, in seconds since the epoch
    who: str
    request: str
    arguments: Mapping[str, Any]
    granted: bool | None = None
    text: str = ""

    @property
    def wish(self) -> str:  # prose: allow, the old name
        """Return ``request``. The old name; deprecated."""
        deprecated("Request.wish", "Request.request")  # prose: allow, the old name
        return self.request


class RequestQueue(Protocol):
    """The requests of users, numbered in the order in which they came.

    A request is taken when the journal has a RequestMade with its number, so a request is taken once, however runs end.
    """

    def ask(self, who: str, request: str, arguments: Mapping[str, Any]) -> int:
        """Add a request, from any process; return its number, which is greater than all earlier numbers."""

    def pending(self) -> list[RequestMade]:
        """Return the requests that are not in the journal yet, in order."""

    def trail(self) -> list[Request]:
        """Return all requests ever made, in order, with their answers."""

    def answer(self, number: int) -> RequestAnswered | None:
        """Return the answer to a request from the journal; None if there is none yet."""


class JournalStore(Protocol):
    """An open journal: all messages of an experiment in order, append-only."""

    @property
    def path(self) -> Path:
        """Return what names the journal in messages to users."""

    @property
    def requests(self) -> RequestQueue:
        """Return the queue of requests that belongs to the journal."""

    def append(self, time: float, messages: Iterable[Message]) -> None:
        """Write messages at once: all of them are durable when the method returns, or none is written.

        Raise OSError if the same append may succeed later, e.g. once a disk has room again.
        """

    def read(self, after: int = 0) -> Iterator[tuple[int, float, Message]]:
        """Yield the number, time and message of all records after number ``after``, in order. Numbers begin at 1.

        Raise JournalError if the journal is damaged.
        """

    def last(self) -> Message | None:
        """Return the newest message; None if the journal is empty."""

    def close(self) -> None:
        """Release all resources. Called once."""


class VersionStore(Protocol):
    """The saved model versions of one experiment, as one process sees them.

    A version is a file that a framework writes and reads. Each save has its own number, ``VersionRef.attempt``, and its
    own file: a late writer, e.g. a worker that was taken for dead, never overwrites another save. The journal tells
    which save counts.
    """

    @property
    def sends(self) -> bool:
        """Whether a durable version counts as saved only after ``send``."""

    def path(self, ref: VersionRef, *, durable: bool) -> Path:
        """Return the file in which ``write`` puts a version on this machine. Messages to users name this file."""

    def write(self, ref: VersionRef, write: Callable[[Path], None], *, durable: bool, size: int) -> tuple[str, int]:
        """Save a version of about ``size`` bytes; return its SHA-256, empty if it needs no check, and its size.

        ``write`` fills the file that it is given. A durable version survives a power cut; others only go from worker to
        worker. Raise OSError if the same write may succeed later; then nothing is left behind.
        """

    def find(self, ref: VersionRef, expected: str = "") -> Path:
        """Return a file on this machine with a saved version.

        Raise CheckpointError if there is no such version, or if its SHA-256 is not the ``expected`` one.
        """

    def keep(self, ref: VersionRef, saved: int | None, expected: str = "") -> tuple[str, int]:
        """Make the file of save ``saved`` the durable version ``ref``; return its SHA-256 and its size.

        Raise CheckpointError as ``find`` does; then there is no version ``ref``.
        """

    def copy(self, source: VersionRef, ref: VersionRef, expected: str = "") -> tuple[str, int]:
        """Give a clone the version ``source`` of its parent as its own durable version ``ref``, as ``keep`` does.

        Either version outlives the other.
        """

    def send(self, ref: VersionRef) -> None:
        """Bring a durable version to where it is kept, if the store ``sends``. Raise OSError to be called again."""

    def collect(self, trial: str = "") -> None:
        """Bring the durable versions of a trial, or of all trials, into the run folder, if they are kept elsewhere."""

    def drop(self, ref: VersionRef) -> None:
        """Delete the file of one save, if there is one."""

    def tidy(self, needed: Iterable[VersionRef]) -> None:
        """Delete all version files, half-written files included, except the ``needed`` ones and other files."""

    def forget(self, trial: str) -> None:
        """Delete everything that belongs to a trial."""

    def release(self) -> None:
        """Delete all versions that are not durable: the experiment is over."""


class Store(Protocol):
    """The stores of run folders. A store object holds no connection, and is sent to workers with cloudpickle."""

    def has_journal(self, folder: RunFolder) -> bool:
        """Whether the journal of a run was created."""

    def journal(self, folder: RunFolder, *, writable: bool = False) -> JournalStore:
        """Open the journal of a run. Raise JournalError if there is none, unless ``writable`` creates the journal."""

    def versions(self, checkpoints: Path) -> VersionStore:
        """Return the versions of the run whose folder has the subfolder ``checkpoints``, in any process."""
