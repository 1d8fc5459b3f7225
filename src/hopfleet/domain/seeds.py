"""Seeds for all random streams, each derived from the experiment's seed and its own name.

Streams with different names are independent, and adding a stream never changes another.
"""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: object) -> int:
    """Return a seed below 2**32 that depends on ``seed`` and all ``names`` only."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")
