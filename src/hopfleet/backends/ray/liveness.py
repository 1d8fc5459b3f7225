"""When a silent node or worker counts as lost. Pure: seconds in, a reason out.

Ray takes long to notice that a node is gone, so silence is judged here. A node that cannot be reached is lost soon; a
node whose raylet answers gets more time. A worker may be silent for long, e.g. in a call into C; its node agent can see
whether its process is stopped or gone.

If all other hosts fall silent at once, the link of this machine is more likely to be down than all of them. So a host
that cannot be reached is lost only once another host has answered after the silence began; until then the run waits.
"""

from __future__ import annotations

from collections.abc import Mapping

from hopfleet.backends.ray.cluster import Reachability
from hopfleet.backends.supervision import START_SECONDS

ASK_SECONDS = 1.1
"""Seconds of silence after which a node agent is asked for a sign of life."""

QUIET_SECONDS = 1.6
"""Seconds of silence after which a node that cannot be reached is lost."""

SILENCE_SECONDS = 15.0
"""Seconds of silence after which a node is lost although its raylet answers."""

STUCK_SECONDS = 3.0
"""Seconds of silence after which a node agent checks whether a worker's process is stopped or gone."""

RESUME = "`hopfleet resume` continues the run once the cluster is back"

OUTAGE_SECONDS = 300.0
"""Default of the seconds that a run waits for nodes and for the head if none of them answers."""

DEAF_SECONDS = 60.0
"""Seconds of silence after which a worker is lost even if its process exists."""


def node_lost(verdict: Reachability, silence: float) -> str:
    """Return why a node is lost; empty if it may be alive."""
    wrong: str = verdict.value
    if verdict is Reachability.GONE:
        return wrong
    if verdict is Reachability.UNREACHABLE and silence > QUIET_SECONDS:
        return f"{wrong}, and was silent for {silence:.1f} s"
    return f"it was silent for {silence:.0f} s" if silence > SILENCE_SECONDS else ""


def link_holds(silent: str, since: float, answers: Mapping[str, float], here: str) -> bool:
    """Whether the link of this machine, ``here``, holds although host ``silent`` has been silent ``since`` some time.

    ``answers`` are the times at which hosts have last answered. A third host that has answered later is a witness. If
    there is no third host, nodes of this machine are enough: they continue the run without the silent host.
    """
    if silent == here:
        return True
    others = {host: when for host, when in answers.items() if host != silent}
    witnesses = [when for host, when in others.items() if host != here] or list(others.values())
    return any(when > since + ASK_SECONDS for when in witnesses)


def worker_lost(silence: float, *, ready: bool, start_timeout: float = START_SECONDS) -> str:
    """Return why a worker is lost, whatever its node agent sees; empty if it may be alive."""
    limit = DEAF_SECONDS if ready else start_timeout
    return f"it was silent for {silence:.0f} s" if silence > limit else ""
