"""Tests in processes of their own: some packages do not get along in one process, or with its forks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers.processes import ROOT
from tests.helpers.warm import APART


def passes_apart(request: pytest.FixtureRequest, package: str) -> bool:
    """Run a test in a session for one package and return True; return False in such a session."""
    if APART in os.environ:
        return False
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", request.node.nodeid]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, APART: package}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return True
