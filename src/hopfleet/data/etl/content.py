"""What the first bytes of a file tell of its content: what is no text, or in another encoding, is refused."""

from __future__ import annotations

import codecs

from hopfleet.errors import DataError

UNPACK = "unpack it"

SIGNATURES = {
    b"PK\x03\x04": ("is a zip archive or a workbook", "unpack it, or name its format, as in format='excel'"),
    b"\x1f\x8b\x08": ("is compressed by gzip", "let its name end in .gz, or unpack it"),
    b"BZh91AY&SY": ("is compressed by bzip2", "let its name end in .bz2, or unpack it"),
    b"\x28\xb5\x2f\xfd": ("is compressed by zstd", "let its name end in .zst, or unpack it"),
    b"\xfd7zXZ\x00": ("is compressed by xz", UNPACK),
    b"7z\xbc\xaf\x27\x1c": ("is an archive of 7-Zip", UNPACK),
    b"Rar!\x1a": ("is an archive of RAR", UNPACK),
    b"PAR1": ("is a Parquet file", "let its name end in .parquet, or pass format='parquet'"),
    b"ARROW1\x00": ("is an Arrow file", "let its name end in .arrow, or pass format='arrow'"),
    b"SQLite format 3\x00": ("is a database", "read it with hop.Query('sqlite:///file', 'select ...')"),
    b"\x89HDF\r\n": ("is an HDF5 file", "save its arrays with numpy.savez"),
    b"%PDF-": ("is a PDF document", "export its tables as CSV"),
    b"\xd0\xcf\x11\xe0": ("is an old workbook", "save it as .xlsx"),
    b"version https://git-lfs.github.com/spec/": ("is a pointer of Git LFS, not the file itself", "run git lfs pull"),
}
"""What files that are no text begin with, what they are, and what to do about it."""

MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""What text in other encodings begins with."""


def refuse_other_content(data: bytes, path: str) -> None:
    """Raise DataError if these first bytes of a file are not those of a text in UTF-8."""
    for signature, (what, remedy) in SIGNATURES.items():
        if data.startswith(signature):
            raise DataError(f"{path}: {what}; {remedy}")
    for mark, encoding in MARKS.items():
        if data.startswith(mark):
            raise DataError(
                f"{path}, line 1: is not UTF-8 but {encoding.upper()}; pass hop.Files(path, encoding={encoding!r})"
            )
    if b"\0" in data[: data.find(b"\n") + 1 or len(data)]:
        raise DataError(
            f"{path}, line 1: has bytes that are zero, so it is no text, or one in another encoding; name the "
            "encoding, as in hop.Files(path, encoding='utf-16-le'), or the format, as in hop.Files(path, format='npz')"
        )
