"""Embeddings of many members: the outcome that each member gets alone, in a layout that is fast for what follows."""

from __future__ import annotations

from typing import Any

import torch
from torch.func import grad_and_value, vmap

from hopfleet.frameworks.torch.engines.stacked.operations import StackedOperations

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
MEMBERS, WORDS, WIDTH = 3, 11, 4


def tables() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(MEMBERS, WORDS, WIDTH, generator=generator, dtype=torch.float64).to(DEVICE)


def loss(table: Any, words: Any) -> Any:
    x = torch.nn.functional.embedding(words, table)
    x += table[0]  # as many models add places
    return x.pow(2).mean()


def folded(table: Any, words: Any) -> Any:
    with StackedOperations():
        return loss(table, words)


def test_losses_and_gradients_that_each_has_alone():
    words = torch.arange(10, device=DEVICE).reshape(5, 2) % WORDS
    grads, losses = vmap(lambda table: grad_and_value(folded)(table, words))(tables())
    for number, table in enumerate(tables()):
        grad, value = grad_and_value(loss)(table, words)
        assert torch.allclose(losses[number], value) and torch.allclose(grads[number], grad)


def test_words_of_each_member_and_a_table_that_members_share():
    words = torch.arange(MEMBERS * 4, device=DEVICE).reshape(MEMBERS, 4) % WORDS
    table = tables()[0]
    assert torch.equal(vmap(lambda some: folded(table, some))(words), torch.stack([loss(table, one) for one in words]))


def test_the_rows_of_a_member_lie_side_by_side():
    words = torch.arange(10, device=DEVICE).reshape(5, 2) % WORDS

    def work(table: Any) -> Any:
        with StackedOperations():
            x = torch.nn.functional.embedding(words, table)
        return x.sum(), x

    assert vmap(grad_and_value(work, has_aux=True))(tables())[1][1].is_contiguous()
