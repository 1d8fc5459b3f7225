"""Fixtures for tests of frameworks. They import PyTorch when they are used: sessions of other frameworks do without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.helpers.captures import Place


@pytest.fixture
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["cuda:0", "cpu"])
def place(request: pytest.FixtureRequest) -> Place:
    import torch

    from tests.helpers.captures import Place

    if request.param != "cpu" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return Place(request.param)


@pytest.fixture
def stacked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stack without a comparison of times, but for convolutions."""
    from hopfleet.frameworks.torch._compat import convolves
    from hopfleet.frameworks.torch.engines.stacked import attempts, flotilla

    for module in (attempts, flotilla):
        monkeypatch.setattr(module, "stacks_at_once", lambda session: not convolves(session.model))
