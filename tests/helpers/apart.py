"""Tests in processes of their own: some frameworks do not get along in one process, or with its forks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers.processes import ROOT

APART = "HOPFLEET_TESTS_APART"
"""The environment variable of a process that runs one test."""


def passes_apart(request: pytest.FixtureRequest) -> bool:
    """Run a test in a process of its own and return True; return False in that process."""
    if APART in os.environ:
        return False
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", request.node.nodeid]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, APART: "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return True
