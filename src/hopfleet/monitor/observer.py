"""The interface of observers: objects that hear every message of a run and change nothing.

Histories, live views, notes on the terminal and users' callbacks are observers. A driver takes a list of them and calls
them in the order of the list, so a view that reads a history follows that history in the list.
"""

from __future__ import annotations

from hopfleet.domain.messages import Message


class Observer:
    """An observer that ignores everything; derived classes override what they need."""

    def recall(self, time: float, message: Message) -> None:
        """Take note of a message of an earlier run of the same experiment."""

    def update(self, time: float, message: Message) -> None:
        """Take note of a message that was journaled and acted on."""

    def refresh(self) -> None:
        """Do what is due by the clock. The loop calls this a few times a second, also while no message arrives."""

    def waiting(self, text: str) -> None:
        """Take note that the run waits for a disk or a cluster, and why; an empty text means that the run continues."""
