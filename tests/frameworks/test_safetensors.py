"""Safetensors files: the library reads what Hopfleet writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from hopfleet.errors import CheckpointError
from hopfleet.frameworks.state import safetensors


@pytest.mark.parametrize("dtype", sorted(safetensors.CODES, key=str), ids=str)
def test_the_library_reads_what_we_write(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "f.safetensors"
    path.write_bytes(b"an older and longer file" * 1000)
    tensors = {
        "one": torch.arange(6).reshape(2, 3).to(dtype),
        "two": torch.ones((), dtype=dtype),
        "none": torch.zeros((0, 4), dtype=dtype),
        "bytes": torch.arange(5, dtype=torch.uint8),
    }
    safetensors.write(path, tensors, {"key": "värld"})
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"key": "värld"}
        for name, tensor in tensors.items():
            found = file.get_tensor(name)
            assert found.dtype == tensor.dtype
            assert found.shape == tensor.shape
            assert found.reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8))


def test_a_dtype_that_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a: a tensor of torch.complex128 cannot be saved"):
        safetensors.write(tmp_path / "f", {"a": torch.zeros(1, dtype=torch.complex128)}, {})
