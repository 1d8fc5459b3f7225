"""Check the bars of the house: short files, few ``Any`` in the torch adapter, no mutable state in modules, one writer.

python tools/check_house.py
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = "src/hopfleet"
TESTS = "tests"

MOST_LINES = 450
"""Lines of a source file, and of a file of tests."""

ANY_LIMIT = ("src/hopfleet/frameworks/torch", 30)
"""A folder, and the number of ``Any`` that it must stay below."""

CONTAINERS = frozenset(
    (
        *("dict", "list", "set", "defaultdict", "deque", "Counter", "OrderedDict", "count"),
        *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet"),
    )
)

WRITER = "src/hopfleet/support/files/"
"""The package that creates, replaces, empties and deletes. All others call it.

Libraries that write, such as pyarrow, safetensors and sqlite3, get their paths from it.
"""

WRITES = frozenset(
    (
        *("write_text", "write_bytes", "touch", "mkdir", "unlink", "rmdir", "rename", "symlink_to", "hardlink_to"),
        *("chmod", "lchmod", "truncate", "ftruncate"),
    )
)
"""Methods of paths and open files that write."""

MODULE_WRITES = {
    "os": frozenset(
        (
            *("remove", "unlink", "rename", "renames", "replace", "mkdir", "makedirs", "mkfifo", "mknod", "rmdir"),
            *("removedirs", "truncate", "ftruncate", "link", "symlink", "chmod", "chown", "fchmod", "fchown"),
            *("O_CREAT", "O_TRUNC", "O_WRONLY", "O_APPEND", "O_EXCL"),
        )
    ),
    "shutil": frozenset(
        ("rmtree", "move", "copy", "copy2", "copyfile", "copytree", "chown", "make_archive", "unpack_archive")
    ),
}
"""Names of modules that write, or that ask ``os.open`` to."""

TEXT_MODES = ("r", "w", "a", "x", "r+", "w+", "rt", "wt", "at")
"""Modes of files with text."""


def problems(root: Path) -> Iterator[str]:
    """Yield a line for each bar that the tree below ``root`` misses."""
    count = 0
    for path in sorted((root / SOURCES).rglob("*.py")):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        yield from length_problems(name, text)
        yield from state_problems(name, text)
        yield from writing_problems(name, text)
        yield from encoding_problems(name, text)
        if name.startswith(f"{ANY_LIMIT[0]}/"):
            count += any_count(text)
    for path in sorted((root / TESTS).rglob("*.py")):
        yield from length_problems(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    if count >= ANY_LIMIT[1]:
        yield f"{ANY_LIMIT[0]}: has {count} Any, must have fewer than {ANY_LIMIT[1]}"


def length_problems(name: str, text: str) -> Iterator[str]:
    lines = text.count("\n")
    if lines > MOST_LINES:
        yield f"{name}: has {lines} lines, at most {MOST_LINES}; find the seam"


def state_problems(name: str, text: str) -> Iterator[str]:
    """Yield module-level containers that start empty, and ``global`` statements: both are state of the process."""
    tree = ast.parse(text)
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is not None and _starts_empty(value):
            yield f"{name}:{node.lineno}: mutable state in a module; give it an owner"
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            yield f"{name}:{inner.lineno}: global statement; give the state an owner"


def _starts_empty(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    if not isinstance(value, ast.Call):
        return False
    called = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return ast.unparse(called).rpartition(".")[2] in CONTAINERS and not value.args


def writing_problems(name: str, text: str) -> Iterator[str]:
    """Yield what creates, replaces, empties or deletes files outside of the package for that."""
    if name.startswith(WRITER):
        return
    tree = ast.parse(text)
    modules = _modules(tree)
    for node in ast.walk(tree):
        if what := _write(node, modules):
            yield f"{name}:{node.lineno}: {what} writes; use hopfleet.support.files"  # type: ignore[attr-defined]


def encoding_problems(name: str, text: str) -> Iterator[str]:
    """Yield what reads or writes text in the encoding of the locale."""
    for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
        called: ast.expr = call.func
        owner = ""
        if isinstance(called, ast.Attribute):
            owner, called = ast.unparse(called.value), ast.Name(called.attr)
        named = any(each.arg in ("encoding", None) for each in call.keywords)
        if not isinstance(called, ast.Name) or named:
            continue
        place = 0 if owner and called.id == "open" else 1
        modes = [each for each in call.args[place : place + 1] if getattr(each, "value", "") in TEXT_MODES]
        texts = any(each.arg == "text" for each in call.keywords) and owner == "subprocess"
        reads = called.id in ("read_text", "write_text") and not call.args and owner
        if reads or texts or (called.id in ("open", "fdopen") and (modes or (not owner and len(call.args) == 1))):
            yield f"{name}:{call.lineno}: {called.id}() in the encoding of the locale; name it: encoding='utf-8'"


def _modules(tree: ast.Module) -> dict[str, str]:
    """Return the modules that a file imports, by the names that it gives them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.asname or each.name.partition(".")[0]: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


def _write(node: ast.AST, modules: dict[str, str]) -> str:
    """Return the name of what writes; an empty string if nothing does."""
    if isinstance(node, ast.Import) and any(each.name == "tempfile" for each in node.names):
        return "tempfile"
    if isinstance(node, ast.ImportFrom):
        wanted = MODULE_WRITES.get(node.module or "", frozenset())
        return next((each.name for each in node.names if each.name in wanted or node.module == "tempfile"), "")
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module = modules.get(node.value.id, "")
        return node.attr if node.attr in MODULE_WRITES.get(module, ()) else ""
    return _call_that_writes(node, modules) if isinstance(node, ast.Call) else ""


def _call_that_writes(call: ast.Call, modules: dict[str, str]) -> str:
    called = call.func
    if isinstance(called, ast.Name):
        return "open" if called.id == "open" and _is_mode(call, 1) else ""
    if not isinstance(called, ast.Attribute):
        return ""
    owner = ast.unparse(called.value)
    if modules.get(owner, "").endswith("support.files") or owner == "self":
        return ""
    if called.attr == "open":
        return "open" if _is_mode(call, 1 if owner in modules else 0) else ""
    # Other objects have a replace() with two arguments, or with names.
    is_rename = called.attr == "replace" and len(call.args) == 1 and not call.keywords and owner not in modules
    return called.attr if called.attr in WRITES or is_rename else ""


def _is_mode(call: ast.Call, position: int) -> bool:
    """Whether the argument of a call to ``open`` at a position is a mode in which files are written."""
    given = [*call.args[position : position + 1], *(each.value for each in call.keywords if each.arg == "mode")]
    modes = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return any(set(mode) <= set("rwxabt+") and set(mode) & set("wxa+") for mode in modes)


def any_count(text: str) -> int:
    """Count the uses of ``Any``, imports included."""
    names = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name | ast.alias))
    return sum((node.id if isinstance(node, ast.Name) else node.name) == "Any" for node in names)


def main(arguments: Sequence[str] = ()) -> int:
    found = list(problems(Path(arguments[0]) if arguments else ROOT))
    for line in found:
        sys.stdout.write(f"{line}\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
