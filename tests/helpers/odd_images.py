"""Odd images and folders of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import hopfleet as hop
from tests.helpers.odd_files import Odd

Expect = Mapping[str, Any] | tuple[str, ...]
RGB, GREY = hop.Images(), hop.Images(mode="L")
RAMP = np.array([[0, 257, 65535]], np.uint16)
RED_GREEN = Image.fromarray(np.array([[[255, 0, 0], [0, 255, 0]]], np.uint8))


def picture(name: str, save: Callable[[Path], Any], expect: Any, recipe: Any = RGB, file: str = "a.png") -> Odd:
    """Return the case of one image in the folder of one class; ``expect`` has its pixels."""

    def write(folder: Path) -> None:
        (folder / "cat").mkdir()
        save(folder / "cat" / file)

    wanted = expect if isinstance(expect, tuple) else {"image": [expect], "label": [0]}
    return Odd(f"image: {name}", write, wanted, lambda folder: folder, recipe)


def saved(image: Any, **options: Any) -> Callable[[Path], Any]:
    whole = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    return lambda path: whole.save(path, **options)


def content(data: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(data)


def cut(bytes_left: int) -> Callable[[Path], Any]:
    def save(path: Path) -> None:
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3)).astype(np.uint8)).save(path)
        path.write_bytes(path.read_bytes()[:bytes_left])

    return save


def bomb(path: Path) -> None:
    """Write a small file that claims to hold 2,500 million pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = (50_000).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))))


def palette() -> Any:
    made = Image.new("P", (2, 1))
    made.putpalette([9, 8, 7, 255, 0, 0] + [0] * 762)
    made.putdata([1, 0])
    return made


def turned() -> Any:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


UNREADABLE = ("row 1:", "cannot be decoded", "restore the image")
ONE = [[[255, 0, 0], [0, 255, 0]]]

PICTURES = [
    picture("16 bits", saved(RAMP), [[0, 1, 255]], GREY),
    picture("16 bits, the other order", saved(RAMP.astype(">u2")), [[0, 1, 255]], GREY, "a.tif"),
    picture("32 bits", saved(RAMP.astype(np.int32)), [[0, 1, 255]], GREY, "a.tif"),
    picture(
        "32 bits beyond 16",
        saved(RAMP.astype(np.int32) * 2),
        ("row 1", "a.tif: has values from 0 to 131070", "levels="),
        GREY,
        "a.tif",
    ),
    picture("fractions", saved(np.array([[0, 0.2, 1]], np.float32)), [[0, 51, 255]], GREY, "a.tif"),
    picture(
        "fractions above 1",
        saved(np.array([[0, 2]], np.float32)),
        ("row 1", "a.tif: has values from 0 to 2", "levels="),
        GREY,
        "a.tif",
    ),
    picture(
        "fractions as they are", saved(np.array([[-1.5, 2]], np.float32)), [[-1.5, 2.0]], hop.Images(mode="F"), "a.tif"
    ),
    picture("a palette", saved(palette()), [[[255, 0, 0], [9, 8, 7]]]),
    picture("a palette with a transparent colour", saved(palette(), transparency=0), [[[255, 0, 0], [9, 8, 7]]]),
    picture("transparency", saved(Image.new("RGBA", (1, 1), (1, 2, 3, 4))), [[[1, 2, 3]]]),
    picture(
        "transparency that is kept",
        saved(Image.new("RGBA", (1, 1), (1, 2, 3, 4))),
        [[[1, 2, 3, 4]]],
        hop.Images(mode="RGBA"),
    ),
    picture("grey and transparency", saved(Image.new("LA", (1, 1), (7, 0))), [[[7, 7, 7]]]),
    picture("colours for print", saved(Image.new("CMYK", (1, 1), (0, 255, 0, 0))), [[[255, 0, 255]]], file="a.tif"),
    picture("black and white", saved(Image.new("1", (2, 1), 1)), [[255, 255]], GREY),
    picture("turned by a camera", saved(RED_GREEN, exif=turned()), [[[255, 0, 0]], [[0, 255, 0]]]),
    picture(
        "several frames",
        saved(Image.new("L", (1, 1), 7), save_all=True, append_images=[Image.new("L", (1, 1), 9)]),
        [[7]],
        GREY,
        "a.tif",
    ),
    picture("another ending", saved(RED_GREEN, format="PNG"), ONE, file="a.jpg"),
    picture("an ending in capitals", saved(RED_GREEN), ONE, file="A.PNG"),
    picture("odd letters in its name", saved(RED_GREEN), ONE, file="é \n%s.png"),
    picture("no bytes", content(b""), UNREADABLE),
    picture("a text", content(b"<html>404</html>"), UNREADABLE),
    picture("a photo that breaks off", cut(500), UNREADABLE, file="a.jpg"),
    picture("half a photo", cut(-200), UNREADABLE, file="a.jpg"),
    picture("pixels that break off", cut(-200), UNREADABLE),
    picture("pixels that break off, as a bitmap", cut(-50), UNREADABLE, file="a.bmp"),
    picture("a bomb", bomb, ("row 1:", "a.png: has more pixels than an image should", "make it smaller")),
    picture("a link to another file", lambda path: path.symlink_to("/etc/hostname"), UNREADABLE),
    picture(
        "a link to nothing",
        lambda path: path.symlink_to("nothing.png"),
        ("a.png: is a link to a file that is missing",),
    ),
    picture("drawings alone", content(b"<svg/>"), ("has no files of rows", "name the format"), file="a.svg"),
]


def folders(name: str, write: Callable[[Path], Any], expect: Expect) -> Odd:
    def classes(folder: Path) -> None:
        for label, grey in (("cat", 1), ("dog", 2)):
            (folder / "raw" / label).mkdir(parents=True)
            Image.new("L", (1, 1), grey).save(folder / "raw" / label / "a.png")
        write(folder / "raw")

    return Odd(f"folder: {name}", classes, expect, lambda folder: folder / "raw", GREY)


def linked(folder: Path) -> None:
    """Add a class that lies elsewhere."""
    (folder.parent / "elsewhere").mkdir()
    Image.new("L", (1, 1), 3).save(folder.parent / "elsewhere" / "b.png")
    (folder / "cow").symlink_to(folder.parent / "elsewhere")


def deep(folder: Path) -> None:
    (folder / "cat" / "old").mkdir()
    Image.new("L", (1, 1), 3).save(folder / "cat" / "old" / "b.png")


BOTH = {"image": [[[1]], [[2]]], "label": [0, 1]}

FOLDERS = [
    folders("hidden ones", lambda folder: (folder / "cat").rename(folder / ".cat"), {"image": [[[2]]], "label": [0]}),
    folders("hidden files", lambda folder: (folder / "cat" / "._b.png").write_bytes(b"x"), BOTH),
    folders("no images", lambda folder: (folder / "empty").mkdir(), BOTH),
    folders("notes beside", lambda folder: (folder / "cat" / "notes.md").write_text("x"), BOTH),
    folders("a class behind a link", linked, {"image": [[[1]], [[3]], [[2]]], "label": [0, 1, 2]}),
    folders("a link to itself", lambda folder: (folder / "cat" / "more").symlink_to(folder), BOTH),
    folders(
        "one beside the classes",
        lambda folder: Image.new("L", (1, 1)).save(folder / "a.png"),
        ("a.png: lies beside the folders of the classes; move it",),
    ),
    folders("one in another", deep, {"image": [[[1]], [[3]], [[2]]], "label": [0, 2, 1]}),
]

CASES = [*PICTURES, *FOLDERS]
