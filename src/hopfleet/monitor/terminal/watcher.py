"""Notes and warnings of a run beside its messages: answers to requests, full disks, unused configuration keys."""

from __future__ import annotations

from hopfleet.domain.messages import (
    Finish,
    Message,
    RequestAnswered,
    RequestMade,
    SaveDelayed,
    UnitFinished,
    VersionSaved,
)
from hopfleet.domain.version_ref import VersionRef
from hopfleet.monitor.terminal.live import LiveView


class Watcher:
    """An observer that shows messages and answers to requests, and warns of configuration keys that no trial reads."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._unused: set[str] | None = None
        self._asked: dict[int, RequestMade] = {}
        self._delayed: set[VersionRef] = set()

    def update(self, time: float, message: Message) -> None:
        self._view.update(time, message)
        match message:
            case UnitFinished() if message.unit.trains:
                unused = set(message.unused)
                self._unused = unused if self._unused is None else self._unused & unused
            case Finish():
                for key in sorted(self._unused or ()):
                    self._view.warn(
                        f"the task never read config[{key!r}]; check its spelling, or remove it from the space"
                    )
            case SaveDelayed():
                self.waiting(message.error)
                self._delayed.add(message.ref)
            case VersionSaved() if message.ref in self._delayed:
                self._delayed.discard(message.ref)
                self.waiting("")
            case RequestMade(request="drain"):
                self._view.note("finishing running units; press Ctrl-C again to stop at once")
            case RequestMade():
                self._asked[message.number] = message
            case RequestAnswered():
                asked = self._asked.pop(message.number, RequestMade("request", who="an earlier request"))
                refused = "" if message.granted else f"{asked.request} refused: "
                self._view.note(f"{asked.who}: {refused}{message.text}")
            case _:
                pass

    def refresh(self) -> None:
        self._view.refresh()

    def waiting(self, text: str) -> None:
        self._view.note(f"waiting: {text}; the run continues when this is resolved" if text else "the run continues")
