"""Images: depth of colour, orientation, folders, and rows that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.data.dataset import Dataset
from hopfleet.errors import DataError

image = pytest.importorskip("PIL.Image")


def save(array: Any, path: Path, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(array).save(path, **options)


def prepared(path: Path, tmp_path: Path, recipe: hop.Images, **options: Any) -> Dataset:
    made: Dataset = hop.prepare(path, tmp_path / "set", recipe, partitions=1, overwrite=True, **options)
    return made


RAMP = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)  # 0 to 65,535 in 256 steps


@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_whole_numbers_of_16_bits_keep_their_order(ending: str, mode: str, tmp_path: Path) -> None:
    save(RAMP, tmp_path / "raw" / f"ramp.{ending}")
    (made,) = prepared(tmp_path / "raw", tmp_path, hop.Images(mode=mode)).head(1)["image"]
    grey = np.asarray(made) if mode == "L" else np.asarray(made)[:, :, 0]
    assert grey.reshape(-1).tolist() == list(range(256))


def test_levels_tell_what_is_black_and_white(tmp_path: Path) -> None:
    save(np.array([[100, 4195]], np.uint16), tmp_path / "raw" / "scan.png")
    (made,) = prepared(tmp_path / "raw", tmp_path, hop.Images(mode="L", levels=(100, 4195))).head(1)["image"]
    assert np.asarray(made).tolist() == [[0, 255]]
    with pytest.raises(DataError, match=r"scan\.png: has values from 100 to 4195; hop\.Images\(levels="):
        prepared(tmp_path / "raw", tmp_path, hop.Images(mode="L", levels=(0, 4095)))


def test_floats_are_scaled_and_not_cut(tmp_path: Path) -> None:
    save(np.array([[0.0, 0.5, 1.0]], np.float32), tmp_path / "raw" / "float.tif")
    (made,) = prepared(tmp_path / "raw", tmp_path, hop.Images(mode="L")).head(1)["image"]
    assert np.asarray(made).tolist() == [[0, 128, 255]]
    (made,) = prepared(tmp_path / "raw", tmp_path, hop.Images(mode="F")).head(1)["image"]
    assert np.asarray(made).tolist() == [[0.0, 0.5, 1.0]]
    for wrong in (1.5, np.nan):
        save(np.array([[0.0, wrong]], np.float32), tmp_path / "raw" / "float.tif")
        with pytest.raises(DataError, match=r"float\.tif: has values from"):
            prepared(tmp_path / "raw", tmp_path, hop.Images(mode="L"))


@pytest.mark.parametrize("levels", [(0,), (1, 0), (0, float("inf")), "ab", (True, 2), 3])
def test_levels_are_two_numbers(levels: Any) -> None:
    with pytest.raises(DataError, match=r"levels=.*: must be the values of black and white"):
        hop.Images(levels=levels)


def test_photographs_stand_upright(tmp_path: Path) -> None:
    picture = image.fromarray(np.array([[0, 255]], np.uint8))
    exif = image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    (tmp_path / "raw").mkdir()
    picture.save(tmp_path / "raw" / "phone.png", exif=exif)
    (made,) = prepared(tmp_path / "raw", tmp_path, hop.Images(mode="L")).head(1)["image"]
    assert np.asarray(made).tolist() == [[0], [255]]


def test_hidden_folders_are_no_classes(tmp_path: Path) -> None:
    for name in ("cat", "dog", ".ipynb_checkpoints", "__MACOSX/cat"):
        save(np.zeros((2, 2), np.uint8), tmp_path / "raw" / name / "1.png")
    data = prepared(tmp_path / "raw", tmp_path, hop.Images(mode="L"))
    assert sorted(data.head(9)["label"]) == [0, 1]
    assert hop.load_recipe(data).outcomes["label"].names == ("cat", "dog")


def test_a_folder_that_lies_in_a_hidden_one_is_read(tmp_path: Path) -> None:
    save(np.zeros((2, 2), np.uint8), tmp_path / ".cache" / "raw" / "cat" / "1.png")
    assert prepared(tmp_path / ".cache" / "raw", tmp_path, hop.Images(mode="L")).rows == 1


def test_a_file_without_bytes_is_a_bad_row(tmp_path: Path) -> None:
    save(np.zeros((2, 2), np.uint8), tmp_path / "raw" / "cat" / "1.png")
    (tmp_path / "raw" / "cat" / "2.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"2\.png: cannot be decoded"):
        prepared(tmp_path / "raw", tmp_path, hop.Images(mode="L"))
    assert prepared(tmp_path / "raw", tmp_path, hop.Images(mode="L"), on_error="skip").rows == 1


def test_an_image_without_a_label_gets_none(tmp_path: Path) -> None:
    save(np.zeros((2, 2), np.uint8), tmp_path / "1.png")
    source = {"image": [str(tmp_path / "1.png")] * 2, "label": ["cat", None]}
    with pytest.raises(DataError, match="row 2: column 'label': a label is missing"):
        hop.prepare(source, tmp_path / "set", hop.Images(mode="L"), partitions=1)
