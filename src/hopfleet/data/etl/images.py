"""Images: folders of image files as rows, and the recipe that decodes and resizes them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.columns import Array
from hopfleet.data.etl.listing import Files, SourceFile
from hopfleet.data.etl.objects import fetch_all, fetched
from hopfleet.data.etl.recipe import Batch, Recipe, WrongColumns
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError, MissingExtra, describe
from hopfleet.phrases import did_you_mean

ROWS = 1024
"""Images of a chunk."""

MODES = ("RGB", "L", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "1", "P")
"""Modes of Pillow."""


def image_tables(files: Files, found: Sequence[SourceFile]) -> Iterator[pa.Table]:
    """Yield the image files of a folder as tables; the label of an image is the name of its folder."""
    for start in range(0, len(found), ROWS):
        some = [file.path for file in found[start : start + ROWS]]
        labels = [os.path.basename(os.path.dirname(path)) for path in some]  # noqa: PTH119, PTH120, URLs among them
        yield pa.table({"image": some, "label": labels})


@explained
class Images(Recipe):
    """The recipe for images: decode, convert to a mode of Pillow, and resize.

    The column ``column`` holds paths, URLs or the bytes of image files; URLs are fetched once and cached. An image
    becomes a uint8 array of shape (height, width, channels), or (height, width) for mode "L". Without ``size``, which
    is a height and a width, images keep their own sizes. The column ``label``, if there is one, becomes the rank of its
    value among all values in alphabetical order; other columns are stored as they are.
    """

    arrow = True

    def __init__(
        self, size: tuple[int, int] | None = None, *, mode: str = "RGB", column: str = "image", label: str = "label"
    ) -> None:
        whole = isinstance(size, Sequence) and [type(length) for length in size] == [int, int]
        if size is not None and not (whole and min(size) >= 1):
            raise DataError(f"size={size!r}: must be a height and a width of at least 1, as in (32, 32)")
        if mode not in MODES:
            raise DataError(f"mode={mode!r}: unknown; {did_you_mean(mode, MODES)}there are {', '.join(MODES)}")
        self.size = None if size is None else (size[0], size[1])
        self.mode = mode
        self.column = column
        self.label = label
        self.labels = [label]

    def fit(self, batch: pa.Table) -> Mapping[str, Any]:
        return {"labels": set(batch.column(self.label).to_pylist())} if self.label in batch.column_names else {}

    def apply(self, batch: pa.Table, fitted: Mapping[str, Any]) -> Batch:
        if self.column not in batch.column_names:
            raise WrongColumns(f"has no column {self.column!r}; it has {', '.join(batch.column_names)}")
        sources = batch.column(self.column).to_pylist()
        files = fetch_all(source for source in sources if isinstance(source, str))
        images: list[Array] = [
            self._decoded(source, fetched(files[source]) if isinstance(source, str) else None) for source in sources
        ]
        made: dict[str, Any] = {self.column: images if self.size is None else np.stack(images)}
        for name in batch.column_names:
            if name == self.label:
                ranks = {value: rank for rank, value in enumerate(sorted(fitted["labels"], key=str))}
                values = batch.column(name).to_pylist()
                for value in values:
                    if value not in ranks:
                        raise DataError(f"{value!r} is not among the labels of the training rows, {', '.join(ranks)}")
                made[name] = np.array([ranks[value] for value in values], np.int64)
            elif name != self.column:
                made[name] = batch.column(name)
        return made

    def _decoded(self, source: Any, path: Path | None) -> Array:
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingExtra("Pillow", "images") from error
        if source is None:
            raise DataError(
                f"column {self.column!r}: a value is missing; give the path, the URL or the bytes of an image"
            )
        where = source if isinstance(source, str) else "the image"
        try:
            with Image.open(path or io.BytesIO(source)) as file:
                image = file.convert(self.mode)
            if self.size is not None and image.size != self.size[::-1]:
                image = image.resize(self.size[::-1], Image.Resampling.BILINEAR)
            return np.asarray(image)
        except Exception as error:
            raise DataError(f"{where}: cannot be decoded ({describe(error)}); restore the image") from None
