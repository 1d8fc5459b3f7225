"""Mistakes in running on a cluster."""

from __future__ import annotations

from tests.helpers.mistakes import Mistake

MISTAKES: list[Mistake] = []
