"""Processes are told apart, and those that have ended are known."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hopfleet.support.processes import identity, is_over

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


def test_a_process_that_has_ended() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        name = identity(process.pid)
        assert not is_over(name)
        process.kill()
    assert is_over(name)
    assert not is_over(identity(os.getpid()))


def test_another_process_with_the_same_number() -> None:
    assert is_over(f"{identity(os.getpid())}1")


@pytest.mark.parametrize("text", ["", "pid:[1] 2 3", "anything"])
def test_what_cannot_be_seen_from_here_may_run(text: str) -> None:
    assert not is_over(text)
