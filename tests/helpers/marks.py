"""Marks that tests of several folders share."""

from __future__ import annotations

import os

import pytest

long = pytest.mark.skipif(not os.environ.get("HOPFLEET_LONG"), reason="HOPFLEET_LONG=1 runs it")
