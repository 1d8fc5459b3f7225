"""Disks that cannot sync, for tests of what must be durable."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
import traceback
import warnings
from collections.abc import Callable
from unittest import SkipTest

SYNC_CALLS = {
    "x86_64": (0xC000003E, (74, 75, 26, 162, 306, 277)),
    "aarch64": (0xC00000B7, (82, 83, 227, 81, 267, 84)),
}
"""By machine: its number for seccomp, and those of fsync, fdatasync, msync, sync, syncfs and sync_file_range."""

PASSED, FAILED, SKIPPED, BROKEN = range(4)
"""Exit codes of a child process."""

NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
"""Arguments of prctl(2)."""


def forbid_sync() -> None:
    """Have every sync to a disk fail with EIO in this process, from now on. Raise SkipTest where that is impossible."""
    if sys.platform != "linux" or platform.machine() not in SYNC_CALLS:
        raise SkipTest("only Linux on x86_64 and aarch64 can forbid a process to sync")
    machine, calls = SYNC_CALLS[platform.machine()]
    load, equal, answer = 0x20, 0x15, 0x06
    allow, fail = 0x7FFF0000, 0x00050000 | errno.EIO
    program = [(load, 0, 0, 4), (equal, 1, 0, machine), (answer, 0, 0, allow), (load, 0, 0, 0)]
    for place, call in enumerate(calls):
        program.append((equal, len(calls) - place, 0, call))
    program += [(answer, 0, 0, allow), (answer, 0, 0, fail)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    found = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or prctl(SECCOMP, FILTER, found, 0, 0):
        raise SkipTest(f"this system does not let a process restrict itself ({os.strerror(ctypes.get_errno())})")


def in_child(check: Callable[[], bool]) -> bool:
    """Return what a function returns in a child process, which ends right after. Raise SkipTest if it does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the parent do not matter to the child
        child = os.fork()
    if not child:
        code = BROKEN
        try:
            code = PASSED if check() else FAILED
        except SkipTest:
            code = SKIPPED
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == SKIPPED:
        raise SkipTest("this system does not let a process restrict itself")
    assert code in (PASSED, FAILED), f"the child process ended with exit code {code}"
    return code == PASSED
