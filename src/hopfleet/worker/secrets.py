"""Reading what a configuration keeps secret, from this process's environment or from a file."""

from __future__ import annotations

import os
from pathlib import Path

from hopfleet.domain.secrets import place
from hopfleet.errors import UsageError


def read(reference: str) -> str:
    """The value that a reference stands for. Raises UsageError, without the value, if there is none."""
    kind, name = place(reference)
    if kind == "env":
        value = os.environ.get(name, "")
        if not value:
            raise UsageError(f"secret(env={name!r}): the environment variable is not set here; export {name}=...")
        return value
    try:
        value = Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"secret(file={name!r}): cannot be read ({what}); make it readable for you") from None
    if not value:
        raise UsageError(f"secret(file={name!r}): is empty; write the value into it")
    return value
