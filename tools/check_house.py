"""Check the bars of the house: short files, few ``Any`` in the torch adapter, no mutable state in modules.

python tools/check_house.py
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = "src/hopfleet"

MOST_LINES = 450
"""Lines of a source file."""

ANY_LIMIT = ("src/hopfleet/frameworks/torch", 30)
"""A folder, and the number of ``Any`` that it must stay below."""

CONTAINERS = frozenset(
    (
        *("dict", "list", "set", "defaultdict", "deque", "Counter", "OrderedDict", "count"),
        *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet"),
    )
)


def problems(root: Path) -> Iterator[str]:
    """Yield a line for each bar that the tree below ``root`` misses."""
    count = 0
    for path in sorted((root / SOURCES).rglob("*.py")):
        text, name = path.read_text(), path.relative_to(root).as_posix()
        yield from length_problems(name, text)
        yield from state_problems(name, text)
        if name.startswith(f"{ANY_LIMIT[0]}/"):
            count += any_count(text)
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
