"""Data sets that lie elsewhere, and file systems that are not installed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from hopfleet.data import open_dataset, partition
from hopfleet.errors import DataError, MissingExtra


def test_a_missing_file_system_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    for protocol in ("s3", "s3a"):
        monkeypatch.delitem(_registry, protocol, raising=False)
    with pytest.raises(MissingExtra, match=r"hopfleet\[s3\]"):
        open_dataset("s3://bucket/data")
    with pytest.raises(DataError, match=r"gs://bucket/data: needs a package"):
        open_dataset("gs://bucket/data")
    with pytest.raises(DataError, match="nonsense://bucket"):
        open_dataset("nonsense://bucket")


@pytest.mark.parametrize(("call", "words"), [("exists", "cannot be read"), ("put_file", "cannot be written")])
def test_a_file_system_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, call: str, words: str) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("could not connect")

    monkeypatch.setattr(MemoryFileSystem, call, fail)
    with pytest.raises(DataError, match=rf"memory://unreachable/set: {words} \(RuntimeError: could not connect\)"):
        partition({"x": [1, 2]}, "memory://unreachable/set", partitions=1)
