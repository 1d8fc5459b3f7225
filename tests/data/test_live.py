"""Live data sets: items are made for each batch, and depend on seed, epoch and row alone."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import hopfleet as hop
from hopfleet.data import Dataset
from hopfleet.errors import DataChanged, DataError
from tests.helpers.sample_tasks import Augmented


class Texts(torch.utils.data.Dataset[Any]):
    """Items of several lengths."""

    def __init__(self, rows: int = 12, shift: int = 0) -> None:
        self.rows, self.shift = rows, shift

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"tokens": torch.arange(row % 4 + 1) + self.shift, "text": "a" * row, "half": torch.ones(2).bfloat16()}


def padded(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "tokens": pad_sequence([item["tokens"] for item in items], batch_first=True),
        "text": [item["text"] for item in items],
        "half": torch.stack([item["half"] for item in items]),
    }


def rows_of(dataset: Dataset, **how: Any) -> list[dict[str, Any]]:
    return [batch for part in range(len(dataset)) for batch in dataset.batches(part, batch_size=4, **how)]


def bits(batches: list[dict[str, Any]]) -> str:
    return repr([{name: np.asarray(value).tolist() for name, value in batch.items()} for batch in batches])


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return hop.partition(hop.live(Augmented(20)), tmp_path / "set", partitions=2)


class TestItems:
    """The items of a live data set."""

    def test_differ_by_epoch_and_seed_alone(self, dataset: Dataset) -> None:
        made = {(seed, epoch): bits(rows_of(dataset, seed=seed, epoch=epoch)) for seed in (0, 1) for epoch in (1, 2)}
        assert len(set(made.values())) == 4
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        again = pickle.loads(pickle.dumps(dataset))
        for (seed, epoch), wanted in made.items():
            assert bits(rows_of(again, seed=seed, epoch=epoch)) == wanted
        assert bits(rows_of(dataset)) == bits(rows_of(again, seed=7))  # an evaluation has no seed

    def test_do_not_depend_on_their_batch(self, dataset: Dataset) -> None:
        one = np.concatenate([batch["x"] for batch in dataset.batches(0, batch_size=3, epoch=1)])
        other = np.concatenate([batch["x"] for batch in dataset.batches(0, batch_size=10, epoch=1)])
        assert one.tobytes() == other.tobytes()
        pick = dataset.picker(0, batch_size=3, epoch=1)
        assert np.concatenate([pick(number)["x"] for number in range(4)]).tobytes() == one.tobytes()

    def test_leave_the_generators_of_the_process_alone(self, dataset: Dataset) -> None:
        threads = torch.get_num_threads()
        states = random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()
        rows_of(dataset, epoch=1)
        assert states == (random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist())
        assert torch.get_num_threads() == threads

    def test_are_columns_like_those_of_stored_rows(self, dataset: Dataset, tmp_path: Path) -> None:
        assert str(dataset.columns["x"]) == "float32[1, 6, 6]" and str(dataset.columns["y"]) == "int64"
        batch = dataset.head(3)
        assert (batch["x"].shape, batch["x"].dtype, batch["y"].dtype) == ((3, 1, 6, 6), np.float32, np.int64)
        texts = hop.partition(hop.live(Texts()), tmp_path / "texts", partitions=1)
        assert repr(texts).endswith("12 live rows in 1 partitions, tokens: int64[*], text: str, half: bfloat16[2])")
        for batch in texts.batches(0, batch_size=1):  # a list whatever the batch
            assert isinstance(batch["tokens"], list) and isinstance(batch["text"], list)
            assert batch["half"].dtype == np.uint16

    def test_are_collated(self, tmp_path: Path) -> None:
        texts = hop.partition(hop.live(Texts(), collate=padded), tmp_path / "set", partitions=1)
        batch = next(texts.batches(0, batch_size=4))
        assert batch["tokens"].shape == (4, max(len(text) % 4 for text in batch["text"]) + 1)
        assert batch["half"].dtype == np.uint16 and texts.columns["half"].dtype == "bfloat16"

    def test_of_one_shape_stay_so(self, tmp_path: Path) -> None:
        rows: list[Any] = [np.ones(2)] * 50
        made = hop.partition(hop.live(rows), tmp_path / "set", partitions=1)
        rows[1] = np.ones(3)
        with pytest.raises(DataError, match=r"column 'x': an item is .*collate="):
            rows_of(made)
        rows[1] = {"z": 1}
        with pytest.raises(DataError, match=r"an item has the columns \['z'\], others have \['x'\]"):
            rows_of(made)


class TestFolder:
    """The folder of a live data set."""

    def test_holds_row_numbers(self, dataset: Dataset) -> None:
        numbers = np.concatenate([batch["row"] for batch in rows_of(dataset.stored)])
        assert sorted(numbers) == list(range(20))
        dataset.check(checksums=True)

    def test_of_the_same_items_is_left_as_it_is(self, dataset: Dataset) -> None:
        again = hop.partition(hop.live(Augmented(20)), dataset.url, partitions=2)
        assert again.fingerprint == dataset.fingerprint
        assert bits(rows_of(again, epoch=3)) == bits(rows_of(dataset, epoch=3))

    @pytest.mark.parametrize(
        ("items", "change"),
        [
            (hop.live(Texts(rows=13)), "rows 12 → 13"),
            (hop.live(Texts(shift=1)), "the contents of items"),
            (hop.live(list(range(12))), "columns tokens.* → x: int64"),
            ({"row": np.arange(12)}, "live → stored"),
        ],
    )
    def test_of_other_items_says_so(self, tmp_path: Path, items: Any, change: str) -> None:
        made = hop.partition(hop.live(Texts()), tmp_path / "set", partitions=1)
        with pytest.raises(DataChanged, match=change):
            hop.partition(items, tmp_path / "set", partitions=1)
        if isinstance(items, hop.data.Live):
            with pytest.raises(DataChanged, match=change):
                made.made_by(items)

    def test_opened_alone_asks_for_the_object(self, dataset: Dataset) -> None:
        opened = hop.open_dataset(dataset.url)
        opened.check(checksums=True)
        with pytest.raises(
            DataError, match=r"live data set.*hop.partition\(hop.live\(dataset\), folder, partitions=2, s"
        ):
            opened.head()
        assert bits([opened.made_by(hop.live(Augmented(20))).head()]) == bits([dataset.head()])


def test_unreproducible_items_are_no_change(tmp_path: Path) -> None:
    class Own(Texts):
        def __getitem__(self, row: int) -> dict[str, Any]:
            return super().__getitem__(row) | {"own": float(np.random.default_rng().normal())}

    one, other = (hop.partition(hop.live(Own()), tmp_path / "set", partitions=2) for _ in range(2))
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize(
    ("source", "how", "message"),
    [
        (torch.utils.data.DataLoader(Texts()), {}, "pass loader.dataset, and collate=loader.collate_fn"),
        (iter([1]), {}, r"hop.live\(list_iterator\): must have __len__ and __getitem__"),
        ({"x": [1]}, {}, r"hop.live\(dict\): must have __len__ and __getitem__"),
        (Texts(), {"collate": 5}, "collate=5: must be a function"),
    ],
)
def test_sources_that_cannot_be_live(source: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        hop.live(source, **how)


class TestFrozenAugmentation:
    """Random augmentation that would be stored once."""

    def test_is_noticed(self, tmp_path: Path) -> None:
        with pytest.warns(
            UserWarning, match=r"column 'x' of Augmented is different each time row 0 is read.*hop\.live"
        ):
            hop.partition(Augmented(20), tmp_path / "set", partitions=2)

    def test_is_noticed_in_one_of_the_first_items(self, tmp_path: Path) -> None:
        class Seldom(Texts):
            def __getitem__(self, row: int) -> dict[str, Any]:
                return super().__getitem__(row) | {"noise": random.random() if row == 11 else 0.0}

        with pytest.warns(UserWarning, match="column 'noise' of Seldom is different each time row 11 is read") as seen:
            hop.partition(Seldom(), tmp_path / "set", partitions=2)
        assert len(seen) == 1

    def test_is_not_suspected_in_vain(self, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
        class Odd(Texts):
            def __getitem__(self, row: int) -> dict[str, Any]:
                weight = torch.ones(2, requires_grad=True)
                return super().__getitem__(row) | {
                    "nan": float("nan"),
                    "array": np.array([np.nan, 1]),
                    "weight": weight,
                }

        hop.partition(Odd(), tmp_path / "odd", partitions=2)
        hop.partition(hop.live(Augmented(20)), tmp_path / "live", partitions=2)
        assert not [warning for warning in recwarn if issubclass(warning.category, UserWarning)]
