"""Frozen tensors that trials have in common: held once in the memory of a worker, and saved once in a run folder.

Trials that fine-tune one model differ in a small part of it. The rest is frozen: no gradient ever changes it. After
``build``, each frozen tensor is compared with those that other trials of the worker hold, and equal ones become one
tensor. A version refers to the frozen tensors by the SHA-256 of their files in the folder ``shared``, which stands
beside the folders of the trials. A run folder of an earlier release has no such folder, and its versions are whole.

Nothing stops a task from changing a frozen tensor. So a checksum of each one is taken, and compared after each unit and
before each save. A tensor that was changed is no longer shared: each trial has one of its own again, and its versions
contain it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import WeakSet

import torch
from torch.nn.parameter import is_lazy

from hopfleet.domain.version_ref import SHARED
from hopfleet.errors import CheckpointError, TaskError
from hopfleet.frameworks.base import SharedStateChanged
from hopfleet.frameworks.state import safetensors
from hopfleet.phrases import listed
from hopfleet.support.files import digest, write_atomically

LEAST = 1 << 14
"""Bytes. Smaller tensors are not worth a file of their own; they stay in the versions."""

BLOCK = 64
"""Words of 8 bytes that are summed up before their sum is weighted by its position."""

STRIDE = 0x9E3779B97F4A7C15 - (1 << 64)
"""The step between the weights of two blocks: odd, and far from any small number."""

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by their size in bytes."""

NAME = "tensor"
"""Name of the tensor in its file."""


class SharedTensor:
    """A frozen tensor with the content that it had when the model was built."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name = name
        self.tensor = tensor
        (self.checksum,) = checksums([tensor])

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the tensor's file."""
        return safetensors.digest({NAME: self.tensor.contiguous()}, {})

    def write(self, path: Path) -> None:
        """Write the tensor's file."""
        safetensors.write(path, {NAME: self.tensor.contiguous()}, {})

    @property
    def size(self) -> int:
        """The bytes of the tensor."""
        return self.tensor.numel() * self.tensor.element_size()


class SharedTensors:
    """The shared tensors of one worker. Tensors that no trial uses any more are forgotten."""

    def __init__(self) -> None:
        self._held: dict[Hashable, WeakSet[SharedTensor]] = {}
        #: Names of tensors that a task has changed: each trial has its own.
        self._apart: set[str] = set()
        #: Held while files are written, so that two threads do not write the same file.
        self._writing = threading.Lock()

    def adopt(self, model: torch.nn.Module, device: torch.device) -> list[SharedTensor]:
        """Move the frozen tensors of a model to a device, one after another; return them.

        A tensor that another trial holds with the same content is replaced by that one.
        """
        return [self.share(name, tensor, tensor.detach().to(device)) for name, tensor in frozen(model)]

    def share(self, name: str, tensor: torch.Tensor, content: torch.Tensor) -> SharedTensor:
        """Let ``tensor`` of a model have the ``content``, in common with the other trials if they have the same."""
        key = name, content.shape, content.stride(), content.dtype, content.device
        held = self._held.setdefault(key, WeakSet())
        for known in () if name in self._apart else held:
            if same_bits(known.tensor, content):
                tensor.data = known.tensor
                return known
        tensor.data = content
        found = SharedTensor(name, content)
        if name not in self._apart:
            held.add(found)
        return found

    def check(self) -> None:
        """Raise SharedStateChanged if a trial has changed a tensor that it shares; no trial shares it from now on."""
        held = [shared for some in self._held.values() for shared in some]
        if changed := {shared.name for shared in held} - {shared.name for shared in intact(held)}:
            self._apart |= changed
            for some in self._held.values():
                for shared in [shared for shared in some if shared.name in changed]:
                    some.discard(shared)
            names = listed("", sorted(changed))
            raise SharedStateChanged(f"a trial changed {names}, which was frozen when its model was built")

    def save(self, some: Collection[SharedTensor], folder: Path) -> None:
        """Write the files of those tensors that have none yet in a folder."""
        with self._writing:
            with ThreadPoolExecutor() as threads:
                digests = list(threads.map(lambda shared: shared.digest, some))
            missing = [
                shared for shared, name in zip(some, digests, strict=True) if not file_of(folder, name).is_file()
            ]
            for shared in missing:
                write_atomically(file_of(folder, shared.digest), shared.write, durable=True)
        check_intact(missing)


def frozen(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a model that need no gradient, and the buffers beside them, with their names.

    Running statistics are not among them. A model without frozen parameters has nothing to share.
    """
    parameters = [(name, tensor) for name, tensor in model.named_parameters() if not tensor.requires_grad]
    found = [(name, tensor) for name, tensor in parameters if _shareable(tensor)]
    if not found:
        return
    yield from found
    for place, module in model.named_modules():
        if not hasattr(module, "track_running_stats"):
            for name, buffer in module.named_buffers(place, recurse=False):
                if _shareable(buffer):
                    yield name, buffer


def _shareable(tensor: torch.Tensor) -> bool:
    """Whether a tensor is large enough, plain, and all there is in its memory."""
    return (
        type(tensor) in (torch.nn.Parameter, torch.Tensor)
        and not is_lazy(tensor)
        and tensor.layout == torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
        and tensor.element_size() in WORDS
        and tensor.numel() * tensor.element_size() >= LEAST
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    )


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one type and shape have the same bits."""
    words = WORDS[one.element_size()]
    return torch.equal(one.detach().view(words), other.detach().to(one.device).view(words))


def checksums(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return a checksum of each tensor. It takes as long as reading the tensor once."""
    found = [_checksum(tensor) for tensor in tensors]
    numbers: list[int] = torch.stack([one.to(found[0].device) for one in found]).tolist() if found else []
    return numbers


def _checksum(tensor: torch.Tensor) -> torch.Tensor:
    content = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    whole = content.numel() // (8 * BLOCK) * 8 * BLOCK
    blocks = content[:whole].view(torch.int64).view(-1, BLOCK).sum(1)
    weights = torch.arange(len(blocks), device=tensor.device) * STRIDE + 1
    return (blocks * weights).sum() + content[whole:].sum() * STRIDE


def intact(some: Sequence[SharedTensor]) -> list[SharedTensor]:
    """Return the tensors that have the content that they had when their models were built."""
    found = checksums(shared.tensor for shared in some)
    return [shared for shared, number in zip(some, found, strict=True) if number == shared.checksum]


def check_intact(some: Sequence[SharedTensor]) -> None:
    """Raise TaskError if a tensor changed while it was written."""
    if len(intact(some)) < len(some):
        raise TaskError("the task changed a frozen tensor while it was being saved; set requires_grad in build()")


def folder_of(version: Path) -> Path:
    """Return the folder with the files of shared tensors that the file of a version may refer to."""
    return version.parent.parent / SHARED


def file_of(folder: Path, name: str) -> Path:
    """Return the file of a shared tensor."""
    return folder / f"{name}.safetensors"


def read(version: Path, name: str) -> torch.Tensor:
    """Return a shared tensor that a version refers to, on the CPU. Raise CheckpointError if there is none."""
    path = file_of(folder_of(version), name)
    try:
        if digest(path) == name:
            return safetensors.read(path)[0][NAME]
    except OSError as error:
        raise CheckpointError(f"{version}: refers to {path}, which cannot be read ({error})") from error
    raise CheckpointError(f"{path}: is damaged: another SHA-256 than its name says")
