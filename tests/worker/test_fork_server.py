"""The process that forks workers."""

from __future__ import annotations

import os
import warnings

from hopfleet.worker import fork_server


def test_threads_of_libraries_do_not_put_a_warning_into_logs(monkeypatch, recwarn):
    def fork() -> int:
        warnings.warn("This process is multi-threaded", DeprecationWarning, stacklevel=2)  # as Python 3.12 does
        return 7

    monkeypatch.setattr(os, "fork", fork)
    assert fork_server._fork() == 7 and not recwarn.list
