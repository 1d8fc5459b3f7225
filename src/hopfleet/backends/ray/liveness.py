"""What it means that somebody has not been heard for a while. Pure: seconds in, a reason out.

Ray takes long to notice that a node is gone, so silence is judged here. A node that cannot be reached is lost soon, one
whose raylet answers is given longer. A worker may be silent for long, e.g. in a call into C; whether its process is
stopped or gone, its host can see.
"""

from __future__ import annotations

from hopfleet.backends.ray.cluster import Verdict

START_SECONDS = 120.0
"""A process of Ray that is not there after so long will not come."""

ASK_SECONDS = 1.1
"""If nothing was heard from a node for so long, its host is asked whether it lives."""

QUIET_SECONDS = 1.6
"""A node that cannot be reached, and whose host has been silent for so long, is lost."""

SILENCE_SECONDS = 15.0
"""A node whose raylet answers and whose host does not is lost after so long."""

STUCK_SECONDS = 3.0
"""If a worker has been silent for so long, its host looks whether its process is stopped or gone."""

DEAF_SECONDS = 60.0
"""A worker that has been silent for so long is lost, even if its process is there."""

AWAY_SECONDS = 1.0
"""If nobody has listened for so long, silence says nothing."""


def excused(heard: float, now: float, away: float) -> float:
    """When somebody was last heard, if nobody has listened for ``away`` seconds before ``now``.

    Who has just been started counts as heard later than now: it may take a while before it says anything.
    """
    return heard if away <= AWAY_SECONDS or heard >= now else min(now, heard + away)


def node_lost(verdict: Verdict, silence: float) -> str:
    """Why a node is lost; nothing if it may live."""
    wrong: str = verdict.value
    if verdict is Verdict.GONE:
        return wrong
    if verdict is Verdict.UNREACHABLE and silence > QUIET_SECONDS:
        return f"{wrong}, and was silent for {silence:.1f} s"
    return f"it was silent for {silence:.0f} s" if silence > SILENCE_SECONDS else ""


def worker_lost(silence: float, *, ready: bool) -> str:
    """Why a worker is lost, whatever its host sees; nothing if it may live."""
    limit = DEAF_SECONDS if ready else START_SECONDS
    return f"it was silent for {silence:.0f} s" if silence > limit else ""
