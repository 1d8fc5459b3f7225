"""When a silent node or worker counts as lost."""

from __future__ import annotations

from hopfleet.backends.ray.cluster import Reachability
from hopfleet.backends.ray.liveness import link_holds, node_lost, worker_lost
from hopfleet.backends.supervision import excused
from hopfleet.backends.vitals import Vitals


def test_silence_says_nothing_while_nobody_listened() -> None:
    assert excused(10.0, 20.0, 0.5) == 10.0
    assert excused(10.0, 20.0, 4.0) == 14.0
    assert excused(19.0, 20.0, 4.0) == 20.0
    assert excused(130.0, 20.0, 4.0) == 130.0, "it has just been started"


def test_nodes() -> None:
    assert node_lost(Reachability.GONE, 0.0) == "its raylet is gone"
    assert node_lost(Reachability.UNREACHABLE, 1.5) == ""
    assert node_lost(Reachability.UNREACHABLE, 2.0) == "its host cannot be reached, and was silent for 2.0 s"
    assert node_lost(Reachability.ANSWERS, 14.0) == ""
    assert node_lost(Reachability.ANSWERS, 16.0) == "it was silent for 16 s"


def test_workers() -> None:
    assert worker_lost(59.0, ready=True) == worker_lost(119.0, ready=False) == ""
    assert worker_lost(61.0, ready=True) == "it was silent for 61 s"
    assert worker_lost(121.0, ready=False) == "it was silent for 121 s"


def test_processes() -> None:
    assert Vitals("S", 0).lost(4.0) == ""
    assert Vitals("T", 0).lost(4.0) == "its process was stopped (SIGSTOP), and silent for 4.0 s"
    assert Vitals("Z", 0).lost(4.0) == "its process is gone, and was silent for 4.0 s"


def test_a_silent_host_is_lost_when_another_one_has_answered_since() -> None:
    here, since = "10.0.0.1", 100.0
    assert link_holds("10.0.0.2", since, {here: 105.0, "10.0.0.2": 100.0, "10.0.0.3": 102.0}, here)
    late = {here: 105.0, "10.0.0.2": 100.0, "10.0.0.3": 100.9}
    assert not link_holds("10.0.0.2", since, late, here), "both fell silent at once"


def test_the_hosts_of_this_machine_tell_nothing_about_its_link() -> None:
    here, since = "10.0.0.1", 100.0
    assert not link_holds("10.0.0.2", since, {here: 105.0, "10.0.0.2": 100.0, "10.0.0.3": 99.0}, here)
    assert link_holds("10.0.0.2", since, {here: 105.0, "10.0.0.2": 100.0}, here), "the run continues without the other"
    assert not link_holds("10.0.0.2", since, {"10.0.0.2": 100.0}, here), "there is no other to continue with"
    assert link_holds(here, since, {here: 100.0, "10.0.0.2": 100.0}, here), "no link is in between"
