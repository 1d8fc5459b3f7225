"""The files of a source: found by path, folder, glob or URL, each with its format, its compression and its identity."""

from __future__ import annotations

import codecs
import glob
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hopfleet.data.folders import RemoteFolder
from hopfleet.domain.signatures import explained
from hopfleet.errors import DataError, describe
from hopfleet.phrases import did_you_mean, shown
from hopfleet.support.files import denied, retried

FORMATS = {
    **dict.fromkeys((".csv",), "csv"),
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".txt", ".text"), "text"),
    **dict.fromkeys((".tar",), "webdataset"),
    **dict.fromkeys((".npz",), "npz"),
    **dict.fromkeys((".xlsx",), "excel"),
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"), "images"),
}
"""The format that belongs to the ending of a file's name."""

UNREAD = frozenset(
    (
        *(".heic", ".heif", ".avif", ".svg", ".jp2", ".jfif", ".raw", ".dng", ".xls", ".ods", ".npy", ".h5", ".hdf5"),
        *(".mat", ".sav", ".dta", ".rds", ".orc", ".avro", ".xz", ".7z", ".rar", ".zip", ".tgz"),
    )
)
"""Endings of files of data that are not read."""

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""The compression that belongs to the last ending of a file's name, in Arrow's words."""

NAMES = sorted({*FORMATS.values(), "texts"})

BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
"""Parts of paths that stand for several: ``{000..123}`` and ``{train,valid}``."""

MOST_FILES = 1_000_000


@explained
@dataclass(frozen=True, slots=True)
class Files:
    """Files of rows, and what their names do not tell.

    ``path`` is a file, a folder, a glob or an fsspec URL, or a list of them; ``{000..123}`` in it stands for
    several names. ``format`` is "csv", "tsv", "json" (one object a line, or an array of them), "parquet", "arrow",
    "npz", "excel" (the first sheet), "text" (one row a line), "texts" (one row a file), "images" or "webdataset";
    by default, the names of the files tell, and where each text file lies in one of several folders, one file is
    one row. ``types`` gives Arrow's names of types to columns of CSV files, as in ``{"zip": "string"}``.
    ``missing`` lists texts that stand for missing values, besides the empty one, NA, NaN, null and the like.
    ``encoding`` is that of CSV, JSON and text files that are not UTF-8, as in ``"latin-1"``; ``decimal`` is the
    mark before the fractions of numbers in CSV files, and ``thousands`` the one between thousands. ``header`` has
    the names of the columns of CSV files without a header; True says that the first line has them, even if they are
    numbers.
    """

    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    format: str = ""
    delimiter: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
    encoding: str = ""
    decimal: str = "."
    thousands: str = ""
    header: Literal[True] | Sequence[str] | None = None

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding or "utf-8")
        except (LookupError, TypeError, ValueError):
            raise DataError(
                f"encoding={shown(self.encoding)}: unknown; give a name such as 'latin-1' or 'utf-16'"
            ) from None
        if self.decimal not in (".", ","):
            raise DataError(f"decimal={shown(self.decimal)}: must be '.' or ','")
        if self.thousands not in ("", ",", ".", " ", "'"):
            raise DataError(f"thousands={shown(self.thousands)}: must be ',', '.', ' ' or \"'\"")
        if self.thousands in (self.decimal, self.delimiter) and self.thousands:
            raise DataError(
                f"thousands={self.thousands!r}: is the decimal mark or the delimiter, too; give another one"
            )
        if not (self.header is None or self.header is True or _are_names(self.header)):
            raise DataError(f"header={shown(self.header)}: must be the names of the columns, as in ['a', 'b'], or True")
        if self.decimal == self.delimiter:
            raise DataError(f"decimal={self.decimal!r}: is the delimiter, too; give delimiter=';' or another one")
        if self.format and self.format not in NAMES:
            near = did_you_mean(self.format, NAMES)
            raise DataError(f"format={self.format!r}: unknown; {near}there are {', '.join(NAMES)}")
        if len(self.delimiter.encode()) > 1:
            raise DataError(f"delimiter={self.delimiter!r}: must be one character")


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(name, str) for name in value)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file: where it is, how to read it, and what changes when its contents do."""

    path: str
    format: str
    compression: str
    size: int
    version: str  #: the times of the last changes of its contents and of its entry, or a tag of an object store
    encoding: str = ""  #: that of a text that is not UTF-8

    @property
    def is_remote(self) -> bool:
        return "://" in self.path


def find_files(files: Files) -> list[SourceFile]:
    """Return the files of a source in the order of their paths. Raise DataError if there are none."""
    return [replace(file, encoding=files.encoding) for file in _found_files(files)]


def _found_files(files: Files) -> list[SourceFile]:
    given = [files.path] if isinstance(files.path, str | os.PathLike) else list(files.path)
    paths, found = [each for path in given for each in _expanded(os.fspath(path))], list[SourceFile]()
    for path in paths:
        found += _remote(path, files.format) if "://" in path else _local(path, files.format)
    if not found:
        raise DataError(f"{paths}: names no files; give a file, a folder, a glob such as data/*.csv, or a URL")
    formats = sorted({file.format for file in found})
    if len(formats) > 1:
        raise DataError(
            f"{paths[0]}: holds files of several formats ({', '.join(formats)}); name one kind, as in "
            f"{Path(paths[0]) / '*.csv'}, or pass hop.Files(path, format={formats[0]!r})"
        )
    return found


def _local(path: str, wanted: str) -> list[SourceFile]:
    place = Path(path.removeprefix("file://")).expanduser()
    if (place / "dataset_dict.json").is_file():
        parts = sorted(each.name for each in place.iterdir() if each.is_dir())
        raise DataError(f"{place}: holds the data sets {', '.join(parts)}; name one, as in {place / parts[0]}")
    if place.is_dir():
        names = _files_inside(place)
        if (place / "state.json").is_file():  # a data set that Hugging Face's library has saved
            names = [name for name in names if name.endswith(".arrow")]
        elif not wanted:
            others = [name for name in names if Path(name).suffix.lower() in UNREAD]
            names = [name for name in names if _kind(name)[0]]
            _warn_of_others(place, others, names)
            _refuse_strays(place, names)
            wanted = "texts" if _has_text_classes(place, names) else ""
        if not names:
            endings = ", ".join(FORMATS)
            raise DataError(f"{place}: has no files of rows ({endings}); name the format: hop.Files(path, format=...)")
    elif place.exists():
        names = [str(place)]
    else:
        names = sorted(name for name in glob.glob(str(place), recursive=True) if Path(name).is_file())  # noqa: PTH207
        if not names:
            raise DataError(f"{place}: no such file or folder, and no file matches it as a pattern; correct the path")
    stats = [(name, Path(name).stat()) for name in names]
    return [_found(name, wanted, stat.st_size, f"{stat.st_mtime_ns} {stat.st_ctime_ns}") for name, stat in stats]


def _files_inside(folder: Path) -> list[str]:
    """Return the files of a folder that are not hidden, also behind links. Raise DataError for a link to nothing."""
    found, seen = list[str](), list[tuple[str, tuple[str, ...]]]([(str(folder), ())])
    while seen:
        path, above = seen.pop()
        real = os.path.realpath(path)
        if real in above:  # a link to a folder in which it lies
            continue
        for entry in _entries(path):
            if _hidden(Path(entry.path).relative_to(folder) / ("" if entry.is_file() else "x")):
                continue
            if entry.is_dir():
                seen.append((entry.path, (*above, real)))
            elif entry.is_file():
                found.append(entry.path)
            elif entry.is_symlink():
                raise DataError(
                    f"{entry.path}: is a link to a file that is missing; restore the file, or delete the link"
                )
    return sorted(found)


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"{path}: cannot be listed ({describe(error)}); check its permissions") from error


def _refuse_strays(folder: Path, names: Sequence[str]) -> None:
    """Raise DataError for an image beside the folders of classes, whose class would be the name of the whole folder."""
    beside = [name for name in names if Path(name).parent == folder]
    if beside and len(beside) < len(names) and _kind(beside[0])[0] == "images":
        raise DataError(f"{beside[0]}: lies beside the folders of the classes; move it into one of them")


def _warn_of_others(folder: Path, others: Sequence[str], names: Sequence[str]) -> None:
    """Warn of files of data in a folder that are left out."""
    if others and names:
        warnings.warn(
            f"{folder}: leaves out files whose format cannot be read, {len(others):,}, the first {others[0]}; convert "
            "them, or move them away",
            stacklevel=2,
        )


def _expanded(path: str) -> Iterator[str]:
    """Yield the paths that braces in a path stand for."""
    found = None if Path(path).exists() else BRACES.search(path)
    if found is None:
        yield path
        return
    parts: Iterable[str] = (found[3] or "").split(",")
    if found[1]:
        first, last = int(found[1]), int(found[2])
        if not 0 <= last - first < MOST_FILES:
            raise DataError(f"{path}: {found[0]} must be a first and a last number of at most {MOST_FILES:,} files")
        parts = (str(number).zfill(len(found[1])) for number in range(first, last + 1))
    for part in parts:
        yield from _expanded(path[: found.start()] + part + path[found.end() :])


def _has_text_classes(folder: Path, names: Sequence[str]) -> bool:
    """Whether files are texts in folders that name their classes, as ``keras.utils.text_dataset_from_directory``."""
    inside = [Path(name).relative_to(folder).parts for name in names]
    plain = all(len(parts) == 2 and _kind(parts[1]) == ("text", "") for parts in inside)
    return plain and len({parts[0] for parts in inside}) > 1


def _remote(url: str, wanted: str) -> list[SourceFile]:
    files, path = RemoteFolder(url).filesystem()
    scheme = url.partition("://")[0]
    try:
        if any(mark in path for mark in "*?["):
            listed = retried(lambda: files.glob(path, detail=True))
        elif retried(lambda: files.isdir(path)):
            listed = retried(lambda: files.find(path, detail=True))
        else:
            listed = {path: retried(lambda: files.info(path))}
    except FileNotFoundError:
        raise DataError(f"{url}: no such file or bucket; correct the URL") from None
    except Exception as error:
        remedy = "configure credentials for this file system" if denied(error) else "check the URL and the network"
        raise DataError(f"{url}: cannot be listed ({describe(error)}); {remedy}") from error
    found = []
    for name, info in sorted(listed.items()):
        full = name if "://" in name else f"{scheme}://{name.lstrip('/') if scheme != 'file' else name}"
        hidden = name.startswith(path) and name != path and _hidden(Path(name[len(path) :].lstrip("/")))
        if info.get("type") == "file" and (wanted or _kind(full)[0]) and not hidden:
            version = info.get("ETag") or info.get("etag") or info.get("LastModified") or info.get("mtime") or ""
            found.append(_found(full, wanted, int(info.get("size") or 0), str(version)))
    return found


def _hidden(inside: Path) -> bool:
    """Whether a path within a folder is that of a hidden file, or of one in a hidden folder, such as a notebook's."""
    return inside.name.startswith((".", "_")) or any(part.startswith((".", "__")) for part in inside.parent.parts)


def _found(path: str, wanted: str, size: int, version: str) -> SourceFile:
    kind, compression = _kind(path)
    kind = wanted or kind
    if not kind:
        remedy = f"pass hop.Files(path, format=...), one of {', '.join(NAMES)}"
        if Path(path).suffix.lower() in UNREAD:
            remedy = f"unpack or convert it, or {remedy}"
        raise DataError(f"{path}: the ending of the name tells no format; {remedy}")
    if not size and kind not in ("images", "texts"):  # an image without bytes is a bad row, a text an empty one
        raise DataError(f"{path}: is empty; remove it, or restore it")
    return SourceFile(path, kind, compression, size, version)


def is_known(path: str) -> bool:
    """Whether the name of a file tells its format."""
    return bool(_kind(path)[0])


def _kind(path: str) -> tuple[str, str]:
    """Return the format and the compression of a file by its name; empty for unknown ones."""
    name = Path(path)
    compression = COMPRESSIONS.get(name.suffix.lower(), "")
    suffix = Path(name.stem).suffix if compression else name.suffix
    return FORMATS.get(suffix.lower(), ""), compression


def open_stream(file: SourceFile) -> Any:
    """Open a file as a stream of its decompressed bytes."""
    import pyarrow as pa

    try:
        if file.is_remote:
            files, path = RemoteFolder(file.path).filesystem()
            raw: Any = pa.PythonFile(files.open(path, "rb"), mode="r")
        else:
            raw = pa.OSFile(file.path, "rb")
    except FileNotFoundError:
        raise DataError(f"{file.path}: is missing; restore it, or correct the path") from None
    except Exception as error:
        remedy = "configure credentials for this file system" if denied(error) else "check its permissions"
        raise DataError(f"{file.path}: cannot be opened ({describe(error)}); {remedy}") from error
    plain = pa.CompressedInputStream(raw, file.compression) if file.compression else raw
    return pa.transcoding_input_stream(plain, file.encoding, "utf-8") if file.encoding else plain
