"""The command line: thin commands over the Python API. ``main`` is the entry point."""

from __future__ import annotations

from hopfleet.cli.app import main

__all__ = ["main"]
