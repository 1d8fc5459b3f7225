"""Images: folders of image files as rows, and the recipe that decodes and resizes them."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hopfleet.data.columns import Array
from hopfleet.data.etl.labels import REMEDY, Outcome, refuse_unknown
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
    """The recipe for images: decode, turn upright, convert to a mode of Pillow, and resize.

    The column ``column`` holds paths, URLs or the bytes of image files; URLs are fetched once and cached. An image
    becomes a uint8 array of shape (height, width, channels), or (height, width) for mode "L". Of several frames or
    pages, the first is taken. Without ``size``, which
    is a height and a width, images keep their own sizes. The column ``label``, if there is one, becomes the rank of its
    value among all values in alphabetical order; other columns are stored as they are.

    ``levels`` are the values that become 0 and 255 where an image has more than 8 bits: by default 0 and 65,535 for
    whole numbers, 0 and 1 for others. A row with values beyond them fails. Modes "I" and "F" keep values as they are.
    """

    arrow = True
    levels: tuple[float, float] | None = None

    def __init__(
        self,
        size: tuple[int, int] | None = None,
        *,
        mode: str = "RGB",
        column: str = "image",
        label: str = "label",
        levels: tuple[float, float] | None = None,
    ) -> None:
        whole = isinstance(size, Sequence) and [type(length) for length in size] == [int, int]
        if size is not None and not (whole and min(size) >= 1):
            raise DataError(f"size={size!r}: must be a height and a width of at least 1, as in (32, 32)")
        if mode not in MODES:
            raise DataError(f"mode={mode!r}: unknown; {did_you_mean(mode, MODES)}there are {', '.join(MODES)}")
        if levels is not None:
            numbers = isinstance(levels, Sequence) and [type(level) in (int, float) for level in levels] == [True, True]
            if not (numbers and -math.inf < levels[0] < levels[1] < math.inf):
                raise DataError(f"levels={levels!r}: must be the values of black and white, as in (0, 4095)")
            self.levels = (float(levels[0]), float(levels[1]))
        self.size = None if size is None else (size[0], size[1])
        self.mode = mode
        self.column = column
        self.label = label
        self.labels = [label]

    def fit(self, batch: pa.Table) -> Mapping[str, Any]:
        if self.label not in batch.column_names:
            return {}
        return {"labels": set(batch.column(self.label).drop_null().to_pylist())}

    def outcomes(self, fitted: Mapping[str, Any]) -> Mapping[str, Outcome]:
        return {self.label: Outcome(tuple(sorted(fitted["labels"], key=str)))} if "labels" in fitted else {}

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
                    if value is None:
                        raise DataError(f"column {name!r}: {REMEDY}")
                    if value not in ranks:
                        refuse_unknown(value, list(map(str, ranks)))
                made[name] = np.array([ranks[value] for value in values], np.int64)
            elif name != self.column:
                made[name] = batch.column(name)
        return made

    def _decoded(self, source: Any, path: Path | None) -> Array:
        try:
            from PIL import Image, ImageOps
        except ImportError as error:
            raise MissingExtra("Pillow", "images") from error
        if source is None:
            raise DataError(
                f"column {self.column!r}: a value is missing; give the path, the URL or the bytes of an image"
            )
        where = source if isinstance(source, str) else "the image"
        try:
            with Image.open(path or io.BytesIO(source)) as file:
                image = self._converted(ImageOps.exif_transpose(file))
            if self.size is not None and image.size != self.size[::-1]:
                image = image.resize(self.size[::-1], Image.Resampling.BILINEAR)
            return np.asarray(image)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        except Image.DecompressionBombError as error:
            raise DataError(
                f"{where}: has more pixels than an image should ({describe(error)}); make it smaller, or raise "
                "PIL.Image.MAX_IMAGE_PIXELS"
            ) from None
        except Exception as error:
            raise DataError(f"{where}: cannot be decoded ({describe(error)}); restore the image") from None

    def _converted(self, image: Any) -> Any:
        """Return an image of Pillow in the mode that is wanted. Pillow would cut values above 255 off."""
        from PIL import Image

        if not image.mode.startswith(("I", "F")) or self.mode in ("I", "F"):
            return image.convert(self.mode)
        least, most = self.levels or ((0.0, 1.0) if image.mode == "F" else (0.0, 65535.0))
        values = np.asarray(image, np.float64)
        if not (values >= least).all() or not (values <= most).all():
            raise DataError(
                f"has values from {values.min():g} to {values.max():g}; hop.Images(levels=(black, white)) tells which "
                "become 0 and 255"
            )
        grey = np.rint((values - least) * (255 / (most - least))).astype(np.uint8)
        return Image.fromarray(grey).convert(self.mode)
