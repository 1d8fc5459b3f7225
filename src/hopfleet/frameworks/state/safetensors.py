"""Torch tensors in safetensors files, written and read fast: a hop consists of little else.

The library's own writer always starts a new file. Pages of shared memory that are written for the first time cost twice
as much as those of an existing file, so ``write`` overwrites the existing file and truncates the rest. Files are read
by the library, which checks them; it reads small files faster from bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load

from hopfleet.errors import CheckpointError
from hopfleet.support.files import open_plain, overwrite

SMALL = 1 << 18
"""Bytes. A file of at most this size is read in one piece; a larger file is mapped."""

PIECES = 512
"""Tensors that are written with one system call."""

CODES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float64: "F64",
    torch.complex64: "C64",
}


def write(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write contiguous tensors; the same tensors always give the same bytes."""
    header, pieces = _laid_out(tensors, metadata)
    _put(path, header, pieces)


def write_at_once(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write contiguous tensors; fetch those of a device in one piece, since each transfer from a GPU takes a while."""
    header, pieces = _laid_out(tensors, metadata)
    _put(path, header, [torch.cat(list(some)) for _, some in itertools.groupby(pieces, lambda piece: piece.device)])


def digest(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of the file that ``write`` would write."""
    header, pieces = _laid_out(tensors, metadata)
    found = hashlib.sha256(header)
    for piece in pieces:
        found.update(_on_host(piece).numpy().data)
    return found.hexdigest()


def _laid_out(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> tuple[bytes, list[torch.Tensor]]:
    """Return the header of a file and the bytes of all tensors in order: the widest come first, so all are aligned."""
    header: dict[str, object] = {"__metadata__": metadata}
    pieces: list[torch.Tensor] = []
    offset = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        if tensor.dtype not in CODES:
            raise CheckpointError(f"{name}: a tensor of {tensor.dtype} cannot be saved; use another dtype")
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
        if tensor.numel():
            pieces.append(tensor.reshape(-1).view(torch.uint8))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, pieces


def _put(path: Path, header: bytes, pieces: Sequence[torch.Tensor]) -> None:
    overwrite(path, [header, *(_on_host(piece).numpy().data for piece in pieces)])


def _on_host(piece: torch.Tensor) -> torch.Tensor:
    """Return bytes in host memory. Pinned memory lets a GPU transfer them while other work runs."""
    if not piece.is_cuda:
        return piece.cpu()
    host = torch.empty(piece.shape, dtype=piece.dtype, pin_memory=True)
    host.copy_(piece, non_blocking=True)
    torch.cuda.current_stream(piece.device).synchronize()
    return host


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors, which may map the file, and the metadata. Raises CheckpointError for a damaged file."""
    try:
        with open_plain(path, links=True) as plain:
            is_large = os.fstat(plain.fileno()).st_size > SMALL
            content = b"" if is_large else plain.read()
        if is_large:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return tensors, header.get("__metadata__", {})
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: is damaged ({error})") from error
