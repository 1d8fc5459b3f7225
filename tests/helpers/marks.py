"""Marks that tests of several folders share."""

from __future__ import annotations

import os

import pytest

LONG = bool(os.environ.get("HOPFLEET_LONG"))
"""Whether tests take their long forms."""

long = pytest.mark.skipif(not LONG, reason="HOPFLEET_LONG=1 runs it")
