"""The seal of a bundle: proof that this user exported it, and that nothing in it has changed since.

A seal is an HMAC of the bundle's description, which has a digest of every file that is loaded. Its key is a random
number in the folder of all runs; a key that others could have written proves nothing.
"""

from __future__ import annotations

import hmac
import secrets

from hopfleet.errors import UsageError
from hopfleet.store.folder import home
from hopfleet.support.files import check_private, make_folder, write_once

KEY = "seal.key"
KEY_BYTES = 32


def seal(content: bytes) -> str:
    """Return the seal of a description."""
    return hmac.new(_key(), content, "sha256").hexdigest()


def is_sealed(content: bytes, found: str) -> bool:
    """Whether a seal of a description was made with this user's key."""
    try:
        check_private(home(), home() / KEY)
    except (OSError, UsageError):
        return False
    return hmac.compare_digest(seal(content).encode(), found.strip().encode())


def _key() -> bytes:
    path = home() / KEY
    make_folder(home(), private=True)
    if not path.exists():
        write_once(path, secrets.token_bytes(KEY_BYTES))  # of several processes, the first one makes the key
    return path.read_bytes()
