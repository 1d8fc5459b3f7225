"""Compiled programs on disk: another run of the same code on the same kind of machine takes them from there."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import stat
from pathlib import Path

import jax

from hopfleet.support.cache import cache_folder
from hopfleet.support.files import check_own, make_folder, open_folder

LEAST_SECONDS = 0.1
"""Programs that are compiled in less time are not kept."""

MOST_BYTES = 1 << 30
"""The size of a folder of programs; those that were used last stay."""


def keep_compiled() -> None:
    """Let JAX keep compiled programs, unless the user has told it where, or the folder is not this user's alone."""
    if jax.config.jax_compilation_cache_dir:
        return
    with contextlib.suppress(OSError):  # without such a folder, programs are compiled anew
        folder = cache_folder("jax") / _kind_of_machine()
        make_folder(folder.parent)
        make_folder(folder, private=True)
        place = open_folder(folder)
        try:
            check_own(place, folder)
            if os.fstat(place).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return
        finally:
            os.close(place)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
        if importlib.util.find_spec("filelock"):  # with which JAX removes old programs
            jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)


def _kind_of_machine() -> str:
    """Return a name for machines with the same processor: programs are made of its instructions."""
    about = [platform.machine()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        about += sorted({line for line in lines if line.split("\t")[0] in ("flags", "Features", "model name")})
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
