"""The interface between workers and frameworks for teams: several processes that train one trial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from hopfleet.domain.placement import SINGLE, Placement, TeamShape
from hopfleet.errors import UsageError
from hopfleet.frameworks.process_settings import Around, unwatched


@dataclass(frozen=True, slots=True)
class Membership:
    """A process's place in a team."""

    rank: int
    placement: Placement
    #: On the first member, a socket to each other member in their order; on others, a socket to the first.
    links: Sequence[Connection]
    #: This process's address on the network that the members share; empty if all are on one machine and share files.
    address: str = ""
    #: Members that cannot read the files of the first one, by rank.
    apart: frozenset[int] = frozenset()


class MemberLost(Exception):
    """Another member of the team is gone."""


class Team(ABC):
    """The processes that train a trial together, as one of them sees it."""

    #: Why the members can no longer work together; empty if they can.
    broken: str = ""
    #: Whether they cannot because another member is gone, and not because of the user's code.
    lost: bool = False
    placement: Placement

    @abstractmethod
    def follow(self, open_session: Callable[..., object], around: Around = unwatched) -> None:
        """Do what the first member says, until it is gone. ``open_session`` makes this member's part of a session.

        ``around`` has the own settings of a trial in force while its code runs.
        """


class TeamTrainer:
    """The part of a framework that concerns teams. By default, a framework trains each trial on one device."""

    def strategies(self) -> Sequence[str]:
        """Return the strategies that can train a trial of this framework."""
        return ("single",)

    def team_shape(self, strategy: str, devices: int = 0) -> TeamShape:
        """Return how a worker trains with a strategy; 0 ``devices`` stands for as many as a worker can have.

        Raise UsageError if the strategy is unknown or does not suit the number.
        """
        if strategy != SINGLE.strategy or devices > 1:
            raise UsageError(
                f"parallelism={strategy!r}: this framework trains each trial on one device; use parallelism='single'"
            )
        return SINGLE

    def check_team(self, config: Mapping[str, Any], shape: TeamShape, *, seed: int) -> None:
        """Raise UsageError if a team cannot train the model of a configuration. Called before a run starts."""

    def spans_nodes(self, strategy: str) -> bool:
        """Whether the members of a team with a strategy may be on several nodes."""
        return False

    def repeats(self, strategy: str) -> bool:
        """Whether training again with a strategy gives the same bits."""
        return True

    def modules(self, strategy: str) -> Sequence[str]:
        """Return the modules that workers with a strategy import before they fork."""
        return ()

    def join(self, membership: Membership) -> Team:
        """Form a team with other processes, which call this method at the same time.

        Raise MemberLost if one of them ends meanwhile.
        """
        raise NotImplementedError("a framework with strategies for teams must implement Framework.join")

    def follow(self, team: Team, around: Around = unwatched) -> None:
        """Serve the first member of a team until it is gone, with each trial's own settings in force ``around`` it."""
        raise NotImplementedError("a framework with strategies for teams must implement Framework.follow")
