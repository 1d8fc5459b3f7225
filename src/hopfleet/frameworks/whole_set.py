"""Metrics that are not means over rows: their rows are gathered, and scored once over all rows of an evaluation.

The F1 score of a data set is not the mean of the F1 scores of its batches. So ``metrics`` may return the outputs and
targets of a batch as a ``WholeSet``. Sessions turn it into ``Gathered`` rows, which add up in the order of the data set
like the sums of other metrics; a worker that finds some evaluates all validation partitions itself, and reports the
score alone.
"""

from __future__ import annotations

import itertools
import math
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from hopfleet.domain.rowsum import RowSum, add
from hopfleet.errors import MissingExtra, TaskError
from hopfleet.phrases import did_you_mean, shown
from hopfleet.support.user_code import interrupts

LIMIT = 1 << 31
"""Bytes that the rows of one metric of one trial may take."""

REMEDY = (
    "return less for each row, e.g. the score of one class instead of all logits, or float16, or validate on fewer rows"
)
"""What to do about rows that take more than ``LIMIT``."""

Piece = Mapping[str, Any]
"""The columns of a batch, or the state of a metric after a batch: names to arrays, or to lists."""

Result = dict[str, RowSum] | BaseException
"""Metrics, or the exception in their place."""

Close = Callable[[Sequence[Piece]], Any]
"""Returns the score of all pieces, which are given in the order of the data set."""


class WholeSet:
    """Outputs and targets of the rows of a batch, which are scored once over all rows of an evaluation.

    ``metrics`` may return it in place of a number, for scores that are not means over rows. ``score`` is the name of a
    scorer of scikit-learn, such as "roc_auc" or "f1"; a function of targets and outputs; or a metric of torchmetrics or
    Keras. Further columns, such as ``sample_weight``, are passed to it by their names.
    """

    def __init__(self, score: Any, outputs: Any, targets: Any, **columns: Any) -> None:
        if isinstance(score, str):
            _scorer(score)
        elif isinstance(score, type) or not (callable(score) or _updates(score)):
            raise TaskError(
                f"WholeSet({shown(score)}): must be the name of a scorer of scikit-learn, a function of targets and "
                "outputs, or a metric of torchmetrics or Keras, e.g. hop.WholeSet('roc_auc', outputs, targets)"
            )
        self.score = score
        self.columns = {"outputs": outputs, "targets": targets, **columns}

    def tree_flatten(self) -> tuple[list[Any], tuple[Any, tuple[str, ...]]]:
        """Return the columns, and what is not an array, as compiled programs of JAX need them."""
        return list(self.columns.values()), (self.score, tuple(self.columns))

    @classmethod
    def tree_unflatten(cls, about: tuple[Any, tuple[str, ...]], columns: Sequence[Any]) -> WholeSet:
        """Invert ``tree_flatten``."""
        made = object.__new__(cls)
        made.score, made.columns = about[0], dict(zip(about[1], columns, strict=True))
        return made


class States(WholeSet):
    """The state of a metric object after the rows of one batch; ``close`` makes the score of all such states."""

    def __init__(self, close: Close, state: Mapping[str, Any]) -> None:
        self.close, self.columns = close, dict(state)


class Scored(RowSum):
    """A score over the whole set, and why it is NaN, if it is."""

    __slots__ = ("reason",)
    reason: str

    def __init__(self, score: float, rows: int, reason: str = "") -> None:
        super().__init__(Fraction(score) * rows if math.isfinite(score) else score, rows)
        object.__setattr__(self, "reason", reason)


class Gathered(RowSum):
    """The rows of some batches, to be scored together with those of the others. Its mean is their score."""

    __slots__ = ("_close", "_pieces", "name", "size")
    name: str
    #: Bytes of all pieces.
    size: int
    _close: Close | None
    _pieces: Any

    def __init__(self, name: str, close: Close | None, pieces: Any, rows: int, size: int) -> None:
        # Pieces are a tree of pairs, so that adding many takes no more time than adding few.
        for key, value in (("name", name), ("_close", close), ("_pieces", pieces), ("rows", rows), ("size", size)):
            object.__setattr__(self, key, value)
        if size > LIMIT:
            raise TaskError(f"metric {name!r}: its rows take more than {LIMIT >> 30} GiB, which is the limit; {REMEDY}")

    def __reduce__(self) -> tuple[Any, ...]:
        close = self._close
        try:
            pickle.dumps(close)
        except Exception:  # a function inside of a function: the first member of a team has its own
            close = None
        return Gathered, (self.name, close, self._pieces, self.rows, self.size)

    def __add__(self, other: RowSum) -> RowSum:
        if not isinstance(other, Gathered):
            raise TaskError(f"metric {self.name!r}: is a number for some batches and a WholeSet for others; return one")
        rows, size = self.rows + other.rows, self.size + other.size
        return Gathered(self.name, self._close or other._close, (self._pieces, other._pieces), rows, size)

    def __radd__(self, other: RowSum) -> RowSum:
        return self + other

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces in the order in which they were added."""
        left = [self._pieces]
        while left:
            piece = left.pop()
            if isinstance(piece, tuple):
                left += reversed(piece)
            else:
                yield piece

    def joined(self, others: Sequence[Gathered]) -> RowSum:
        """Return the sum with the rows of others, batch by batch in turn, as batches were dealt to all of them."""
        dealt = itertools.zip_longest(*(each.pieces() for each in (self, *others)))
        close = next((each._close for each in (self, *others) if each._close is not None), None)
        rows, size = (sum(getattr(each, name) for each in (self, *others)) for name in ("rows", "size"))
        pieces = tuple(piece for turn in dealt for piece in turn if piece is not None)
        return Gathered(self.name, close, pieces, rows, size)

    @property
    def total(self) -> Fraction | float:
        return self.scored().total

    def scored(self) -> Scored:
        """Return the score of all rows."""
        if self._close is None:
            raise TaskError(
                f"metric {self.name!r}: its score cannot pass between processes; use the name of a scorer, or a "
                "function at the top of a module"
            )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                value = _number(self.name, self._close(list(self.pieces())))
            except ValueError as error:
                if "one class" not in str(error):  # releases of scikit-learn before 1.6 raise, later ones return NaN
                    error.add_note(f"metric {self.name!r}, scored over {self.rows} rows: {self._described()}")
                    raise
                return Scored(math.nan, self.rows, str(error))
        texts = dict.fromkeys(str(each.message) for each in caught)
        if not math.isnan(value):
            for each in caught:
                warnings.warn(each.message, stacklevel=2)
            texts = {}
        return Scored(value, self.rows, "; ".join(texts))

    def _described(self) -> str:
        first = next(self.pieces())
        return ", ".join(f"{name} {_shape(value)}" for name, value in first.items()) + " in the first batch"


NOT_MEANS = frozenset(
    (
        *(
            "ap",
            "auc",
            "auprc",
            "auroc",
            "bleu",
            "corr",
            "correlation",
            "f1",
            "fbeta",
            "kappa",
            "kendall",
            "map",
            "mcc",
        ),
        *("miou", "pearson", "perplexity", "precision", "r2", "recall", "rmse", "rmsle", "spearman"),
    )
)
"""Words in the names of metrics that are not means over rows."""


def doubtful(sums: Mapping[str, RowSum]) -> str:
    """Return the name of a metric that is averaged over batches although a mean of batches is wrong; empty if none."""
    for name, value in sums.items():
        if not isinstance(value, Gathered) and NOT_MEANS.intersection(re.split(r"[\W_]+", name.lower())):
            return name
    return ""


def collected(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with the rows of each ``WholeSet`` copied to the memory of the host."""
    return {name: _rows(name, value) if isinstance(value, WholeSet) else value for name, value in metrics.items()}


def gathers(sums: object) -> bool:
    """Whether metrics, unless they are an exception, have rows that await those of other partitions."""
    return isinstance(sums, Mapping) and any(isinstance(value, Gathered) for value in sums.values())


def check_room(sums: object, rows: int, all_rows: int) -> None:
    """Raise TaskError if the whole set will not fit into ``LIMIT``, given metrics of ``rows`` of ``all_rows`` rows."""
    for name, value in sums.items() if isinstance(sums, Mapping) else ():
        if isinstance(value, Gathered) and (needed := value.size * all_rows // max(rows, 1)) > LIMIT:
            raise TaskError(
                f"metric {name!r}: the {all_rows:,} validation rows would take {needed / (1 << 30):.1f} GiB, and the "
                f"limit is {LIMIT >> 30} GiB; {REMEDY}"
            )


def scored(parts: Sequence[Result]) -> Result:
    """Return the metrics of all partitions, given in their order: scores in place of gathered rows."""
    try:
        for part in parts:
            if isinstance(part, BaseException):
                raise part
        found = add(part for part in parts if not isinstance(part, BaseException))
        return {name: value.scored() if isinstance(value, Gathered) else value for name, value in found.items()}
    except BaseException as error:
        if interrupts(error):
            raise
        return error


def dealt(sums: Sequence[Mapping[str, RowSum]]) -> list[dict[str, RowSum]]:
    """Return the metrics of members that took batches in turn, with all gathered rows in one, in their order."""
    found = [dict(each) for each in sums]
    for name in dict.fromkeys(itertools.chain(*found)):
        rows = [value for each in found if isinstance(value := each.get(name), Gathered)]
        if rows:
            found = [{key: value for key, value in each.items() if key != name} for each in found]
            found[0][name] = rows[0].joined(rows[1:])
    return found


def _rows(name: str, value: WholeSet) -> Gathered:
    if isinstance(value, States):
        state = {
            key: [*map(_array, each)] if isinstance(each, list) else _array(each) for key, each in value.columns.items()
        }
        return Gathered(name, value.close, state, 1, sum(map(_bytes, state.values())))
    piece = {column: _host(name, column, part) for column, part in value.columns.items()}
    lengths = {column: len(part) for column, part in piece.items()}
    if len(set(lengths.values())) != 1:
        shapes = ", ".join(f"{column} {_shape(part)}" for column, part in piece.items())
        raise TaskError(f"metric {name!r}: all columns of a WholeSet must have the same number of rows, got {shapes}")
    return Gathered(name, _Score(value.score), piece, lengths["outputs"], sum(map(_bytes, piece.values())))


def _host(name: str, column: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [each if isinstance(each, str | bytes | dict | list) else _array(each) for each in value]
    array = _array(value)
    if array.ndim == 0:
        raise TaskError(f"metric {name!r}: {column} of a WholeSet must have a value for each row, got {shown(value)}")
    return array


def _array(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).cpu().numpy()
    return np.array(value)  # a copy: batches are views of partitions, and may be written into


def _bytes(part: Any) -> int:
    if isinstance(part, list):
        return sum(map(_bytes, part))
    return int(part.nbytes) if isinstance(part, np.ndarray) else sys.getsizeof(part)


def _shape(part: Any) -> str:
    return f"{part.dtype}{list(part.shape)}" if isinstance(part, np.ndarray) else f"a list of {len(part)}"


def _number(name: str, value: Any) -> float:
    value = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if value.size != 1:
        raise TaskError(
            f"metric {name!r}: its score is {shown(value)}, must be one number; average it, e.g. with average='macro'"
        )
    return float(value.item())


class _Score:
    """Scores the rows of all batches at once."""

    def __init__(self, score: Any) -> None:
        self.score = score

    def __call__(self, pieces: Sequence[Piece]) -> Any:
        columns = {name: _joined(name, [piece[name] for piece in pieces]) for name in pieces[0]}
        outputs, targets, score = columns.pop("outputs"), columns.pop("targets"), self.score
        if isinstance(score, str):
            function, options, sign = _scorer(score)
            return sign * function(targets, outputs, **options, **columns)
        if not _updates(score):
            return score(targets, outputs, **columns)
        if hasattr(score, "update_state"):
            score.reset_state()
            score.update_state(targets, outputs, **columns)
            return score.result()
        score.reset()
        score.update(*(_tensor(score, part) for part in (outputs, targets)), **columns)
        found = score.compute()
        score.reset()
        return found


def _joined(name: str, parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], list):
        return list(itertools.chain(*parts))
    if len({part.shape[1:] for part in parts}) > 1:
        shapes = sorted({str(list(part.shape)) for part in parts})
        raise TaskError(f"{name} of a WholeSet must have one shape for each row, got {', '.join(shapes)}: pad them")
    return np.concatenate(parts)


def _updates(score: Any) -> bool:
    """Whether a score is an object that is updated with rows: a metric of torchmetrics or Keras."""
    return not isinstance(score, type) and (
        (hasattr(score, "update") and hasattr(score, "compute"))
        or (hasattr(score, "update_state") and hasattr(score, "result"))
    )


def _tensor(metric: Any, part: Any) -> Any:
    """Return rows as a metric of torchmetrics takes them."""
    import torch

    return torch.from_numpy(part).to(getattr(metric, "device", "cpu")) if isinstance(part, np.ndarray) else part


def _scorer(name: str) -> tuple[Callable[..., Any], Mapping[str, Any], int]:
    """Return the function of a scorer of scikit-learn, its options and its sign."""
    try:
        from sklearn.metrics import get_scorer, get_scorer_names
    except ImportError as error:
        raise MissingExtra("scikit-learn", "sklearn") from error
    known = get_scorer_names()
    if name not in known:
        raise TaskError(
            f"WholeSet({name!r}): must be the name of a scorer; {did_you_mean(name, known)}"
            "sklearn.metrics.get_scorer_names() lists them; other scores can be functions of targets and outputs"
        )
    scorer = get_scorer(name)
    return scorer._score_func, scorer._kwargs, scorer._sign
