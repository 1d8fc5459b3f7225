"""Old public names: they work for one more release and name their replacement."""

from __future__ import annotations

import warnings


def deprecated(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that ``old`` goes away in the next release and that ``new`` replaces it."""
    warnings.warn(f"{old} is deprecated and goes away in release 0.3; use {new}", FutureWarning, stacklevel=stacklevel)
