"""Seeds for everything that is random, each derived from the experiment's seed and a name of its own.

Two things with different names never share a stream, and adding one never shifts another.
"""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: object) -> int:
    """A seed below 2**32 that depends on ``seed`` and all ``names``, and on nothing else."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")
