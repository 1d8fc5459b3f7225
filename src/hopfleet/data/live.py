"""Live data sets: items are made when a batch needs them, anew in each epoch.

What a data set's ``__getitem__`` draws from ``random``, ``numpy.random`` and torch's generator belongs to the item:
before each item, all three are seeded from the experiment's seed, the epoch and the row. So an item is the same
wherever and whenever it is made, and different in each epoch. The generators of the process are left as they were.

A partition stores row numbers alone. The Python object that makes the items is never stored; it travels to workers with
the task.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from hopfleet.data.cells import Values
from hopfleet.data.columns import ELEMENTS, Array, Column, Kind, check_names
from hopfleet.data.convert import column_cells, is_tensor, row_columns, same, tensor_cells
from hopfleet.data.manifest import LiveItems
from hopfleet.domain.seeds import derive
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError

ROW = "row"
"""The stored column of a live data set: the number of the item."""

TRIED = 8
"""Items that are made when a live data set is partitioned, to know its columns and to recognise it later."""


@explained
def live(dataset: Any, *, collate: Callable[[list[Any]], Any] | None = None) -> Live:
    """Let workers make the items of a map-style data set anew in each epoch, instead of storing them once.

    ``dataset`` has ``__len__`` and ``__getitem__``, like any map-style data set of torch; pass the result to
    ``Experiment(train=...)`` or ``hop.partition``. Random augmentation must draw from ``random``, ``numpy.random`` or
    torch's global generator, which are seeded for each item by seed, epoch and row; an evaluation always uses the same
    seed. ``collate`` makes a batch from a list of items, like the ``collate_fn`` of torch's ``DataLoader``. Without it,
    items become columns as in ``hop.partition``.
    """
    if type(dataset).__name__ == "DataLoader":
        raise DataError("hop.live(DataLoader): must be a data set; pass loader.dataset, and collate=loader.collate_fn")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or isinstance(dataset, Mapping):
        raise DataError(
            f"hop.live({type(dataset).__name__}): must have __len__ and __getitem__ that takes a row number; "
            "hop.partition stores other sources"
        )
    if collate is not None and not callable(collate):
        raise DataError(f"collate={collate!r}: must be a function from a list of items to a batch")
    return Live(dataset, collate)


class Live:
    """A data set whose items are made for each batch. Created by ``hop.live``."""

    def __init__(self, items: Any, collate: Callable[[list[Any]], Any] | None) -> None:
        self._items = items
        self._collate = collate

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"hop.live({type(self._items).__name__}, {len(self):,} items)"

    def batch(self, rows: Array, *, seed: int, epoch: int | None, columns: Mapping[str, Column]) -> dict[str, Any]:
        """Make the items of some rows, for an epoch or for an evaluation (None), as one batch.

        ``columns`` are those that were found when the data set was partitioned.
        """
        made = self._make(rows, seed, epoch)
        if self._collate is not None:
            return {name: _array(name, value)[1] for name, value in row_columns(made).items()}
        for item in made:
            if (seen := row_columns(item).keys()) != columns.keys():
                raise DataError(
                    f"an item has the columns {list(seen)}, others have {list(columns)}; give all the same columns"
                )
        return {name: _values(column, [row_columns(item)[name] for item in made]) for name, column in columns.items()}

    def describe(self) -> LiveItems:
        """Make a few items twice, and return their columns and a checksum of all columns that came out the same."""
        rows = np.unique(np.linspace(0, len(self) - 1, TRIED).astype(np.int64))
        columns, values = self._described(self._make(rows, 0, None))
        _, again = self._described(self._make(rows, 0, None))
        sample = hashlib.sha256(repr((type(self._items).__qualname__, len(self), list(columns))).encode())
        for name in check_names(columns):
            if same(values[name], again.get(name)):
                for part in _parts(values[name]):
                    sample.update(part)
        return LiveItems(columns, sample.hexdigest())

    def _make(self, rows: Array, seed: int, epoch: int | None) -> Any:
        """Return the items of some rows, as a list or collated."""
        items = []
        with _lent_generators() as reseed:
            for row in rows.tolist():
                reseed(derive(0, "live", 0, row) if epoch is None else derive(seed, "live", epoch, row))
                items.append(self._items[row])
            return items if self._collate is None else self._collate(items)

    def _described(self, made: Any) -> tuple[dict[str, Column], dict[str, Any]]:
        """Return the columns and the values of items that were made."""
        if self._collate is not None:
            arrays = {name: _array(name, value) for name, value in row_columns(made).items()}
            columns = {name: _collated_column(name, dtype, value) for name, (dtype, value) in arrays.items()}
            return columns, {name: value for name, (_, value) in arrays.items()}
        rows = [row_columns(item) for item in made]
        cells = {name: column_cells(name, [row[name] for row in rows], 0, None) for name in rows[0]}
        columns = {
            name: Column(
                name, cell.kind, cell.dtype, cell.shape if cell.kind is Kind.FIXED else (-1,) * len(cell.shape)
            )
            for name, cell in cells.items()
        }
        return columns, {name: cell.values() for name, cell in cells.items()}


@contextlib.contextmanager
def _lent_generators() -> Iterator[Callable[[int], None]]:
    """Lend the generators of the process to items, as a function that seeds all; restore their states on exit.

    Items compute with one thread, because the number of threads may change the last bits.
    """
    torch: Any = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    state, threads = (torch.get_rng_state(), torch.get_num_threads()) if torch else (None, 1)

    def reseed(seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        if torch:
            torch.default_generator.manual_seed(seed)

    try:
        if threads != 1:
            torch.set_num_threads(1)
        yield reseed
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch:
            torch.set_rng_state(state)
            if threads != 1:
                torch.set_num_threads(threads)


def _values(column: Column, values: list[Any]) -> Values:
    """Return the values of a column: an array if all items have one shape, else a list."""
    cells = column_cells(column.name, values, 0, None)
    if column.kind is Kind.FIXED and (cells.kind, cells.shape) != (Kind.FIXED, column.shape):
        raise DataError(
            f"column {column.name!r}: an item is {cells.dtype}{list(cells.shape)}, others are {column}; give all items "
            "one shape, or join them with hop.live(dataset, collate=...)"
        )
    return list(cells.values()) if column.kind is Kind.VARIABLE else cells.values()


def _array(name: str, value: Any) -> tuple[str, Any]:
    """Return the dtype of a collated value, empty if unknown, and the value with tensors as arrays."""
    if is_tensor(value):
        cells = tensor_cells(name, value[None])
        return cells.dtype, cells.array[0]
    if isinstance(value, (list, tuple)):
        parts = [_array(name, part) for part in value]
        return parts[0][0] if parts else "", [part for _, part in parts]
    return getattr(getattr(value, "dtype", None), "name", ""), value


def _collated_column(name: str, dtype: str, value: Any) -> Column:
    """Describe a collated column, as far as one batch tells."""
    if dtype not in ELEMENTS:
        bytewise = isinstance(value, list) and bool(value) and isinstance(value[0], bytes)
        return Column(name, Kind.BYTES, "bytes") if bytewise else Column(name, Kind.STRING, "str")
    dimensions = value[0].ndim if isinstance(value, list) else max(0, value.ndim - 1)
    return Column(name, Kind.VARIABLE if dimensions else Kind.FIXED, dtype, (-1,) * dimensions)


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the bytes of a column, for its checksum."""
    if isinstance(value, list):
        for part in value:
            yield from _parts(part)
    elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
        yield repr((value.dtype.str, value.shape)).encode()
        yield value.tobytes()
    elif isinstance(value, (str, bytes)):
        yield repr(value).encode()
