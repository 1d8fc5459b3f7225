"""Models and tokenizers that cannot be loaded: what was asked for, why it is not there, and what to give instead."""

from __future__ import annotations

import os
import socket
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

from huggingface_hub import constants

from hopfleet.errors import TaskError
from hopfleet.phrases import listed

_ASKED = ("pretrained_model_name_or_path", "model_id")
"""Arguments of functions of Transformers and PEFT that name a model or tokenizer."""

_WEIGHTS = (".safetensors", ".bin", ".pt", ".safetensors.index.json", ".bin.index.json")
_SAVED = "a folder that save_pretrained() wrote"


PATIENCE = 2.0
"""Seconds in which a name server answers, if there is one."""


def leave_hub() -> None:
    """Let the hub be taken for absent if its name is not known: each question would be repeated for half a minute."""
    asked = "HF_HUB_OFFLINE" in os.environ or "TRANSFORMERS_OFFLINE" in os.environ
    host = urllib.parse.urlsplit(constants.ENDPOINT).hostname or ""
    if not asked and not urllib.request.getproxies() and _unknown(host) and _unknown(host):
        constants.HF_HUB_OFFLINE = True


def _unknown(host: str) -> bool:
    """Whether the network says that there is no such host. If nothing answers, it may be there."""
    found: list[bool] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(host, 443)
        except OSError:
            found.append(True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return bool(found)


def explained(error: Exception) -> TaskError | None:
    """Return the error for a model or tokenizer that ``build`` could not load; None if another thing is the matter."""
    name = _asked_for(error)
    reason = "" if name is None else obstacle(name, error)
    return TaskError(f"build() asks for {str(name)!r}: {reason}") if reason else None


def obstacle(name: str | Path, error: Exception) -> str:
    """Return why a folder or a name on the hub cannot be loaded, with the remedy; empty if the folder is complete."""
    folder = Path(name)
    if folder.is_dir():
        files = sorted(file.name for file in folder.iterdir())
        if not {"config.json", "adapter_config.json"} & {*files}:
            return f"the folder has no config.json (its files: {listed('', files)}), so it has no model; give {_SAVED}"
        if not any(file.endswith(_WEIGHTS) for file in files):
            return (
                f"the folder has no weights, such as model.safetensors; give {_SAVED}, or make a new model with "
                "from_config() of the class"
            )
        return ""
    if folder.is_absolute() or str(name).startswith((".", "~")) or len(folder.parts) > 2:
        return f"there is no such folder on this machine; give {_SAVED}"
    reason = str(error).strip().splitlines()[0].rstrip(".")
    return (
        f"there is no such folder on this machine, and the hub does not give it ({reason}); check the name and the "
        f"network, or give {_SAVED}"
    )


def check_tokenizer(tokenizer: Any, name: str) -> None:
    """Raise TaskError for a tokenizer that knows no words: Transformers makes one for a folder with a model alone."""
    special = {*getattr(tokenizer, "all_special_tokens", ())}
    if hasattr(tokenizer, "get_vocab") and {*tokenizer.get_vocab()} <= special:
        raise TaskError(
            f"tokenizer={name!r}: there is no tokenizer, only {len(special)} special tokens, so all texts would be "
            "alike; give a folder that tokenizer.save_pretrained() wrote"
        )


def _asked_for(error: BaseException) -> str | Path | None:
    """Return the name of the model or tokenizer that was loaded when an error was raised."""
    trace = error.__traceback__
    while trace is not None:
        if (name := _argument(trace.tb_frame)) is not None:
            return name
        trace = trace.tb_next
    return None


def _argument(frame: FrameType) -> str | Path | None:
    if frame.f_globals.get("__name__", "").partition(".")[0] not in ("transformers", "peft"):
        return None
    found = (frame.f_locals.get(name) for name in _ASKED)
    return next((name for name in found if isinstance(name, str | Path)), None)
