"""The bugs that are tried: one change of one expression or statement inside a function.

Annotations, decorators, docstrings, strings and the constants of modules and classes are left alone: tests that pin
them would only repeat them. So is the ``strict`` of ``zip``, an assertion of our own: no test can tell the difference
where all lengths are equal.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

Step = tuple[str, int | None]
"""A field of a node, and a place in it if the field is a list."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
REMOVED = (ast.Assign, ast.AugAssign, ast.Delete)
CONDITIONS = (ast.If, ast.While, ast.IfExp)


@dataclass(frozen=True)
class Mutant:
    """A change in the outermost function at ``path[:depth]``; its name stays the same where lines move."""

    file: str
    function: str
    change: str
    #: The lines of the statement up to the change: a test that reaches one of them may notice.
    lines: range
    path: tuple[Step, ...]
    depth: int
    replacement: ast.AST

    @property
    def name(self) -> str:
        return f"{self.file}::{self.function}: {self.change}"

    @property
    def place(self) -> tuple[str, str]:
        return self.file, self.function

    @property
    def line(self) -> int:
        return self.lines[-1]

    @property
    def default(self) -> Step | None:
        """The default argument that changes, if one does: a field of ``ast.arguments``, and the place in it."""
        inside = self.path[self.depth :]
        return inside[1] if inside[0] == ("args", None) else None

    def code(self, source: str, filename: str) -> CodeType:
        """Return the code of the outermost function, with the change."""
        tree = ast.parse(source)
        function = _follow(tree, self.path[: self.depth])
        parent, (field, place) = _follow(tree, self.path[:-1]), self.path[-1]
        if place is None:
            setattr(parent, field, self.replacement)
        else:
            getattr(parent, field)[place] = self.replacement
        assert isinstance(function, Function)
        # Nothing else of the module is compiled, but its class, whose name methods may need.
        _leave_alone(tree, self.path[: self.depth])
        compiled = compile(ast.fix_missing_locations(tree), filename, "exec")
        return _find(compiled, function.name, _first_line(function))


def _follow(tree: ast.AST, path: tuple[Step, ...]) -> ast.AST:
    for field, place in path:
        found = getattr(tree, field)
        tree = found if place is None else found[place]
    return tree


def _leave_alone(tree: ast.AST, path: tuple[Step, ...]) -> None:
    """Drop the statements beside the way to a node, except for imports from the future."""
    for field, place in path:
        found = getattr(tree, field)
        tree = found if place is None else found[place]
        if isinstance(found, list):
            found[:] = [each for each in found if each is tree or _is_future(each)]


def _is_future(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _find(code: CodeType, name: str, line: int) -> CodeType:
    codes = [code]
    while codes:
        code = codes.pop()
        if (code.co_name, code.co_firstlineno) == (name, line):
            return code
        codes.extend(each for each in code.co_consts if isinstance(each, CodeType))
    raise LookupError(f"no function {name} at line {line}")


def mutants(file: str, source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its lines."""
    tree, texts, counted = ast.parse(source), source.splitlines(), Counter[tuple[str, str]]()
    found = []
    for node, function, path in _inside(tree, "", ()):
        depth = _depth(tree, path)
        lines = _lines(tree, path, depth)
        text = texts[getattr(node, "lineno", lines[-1]) - 1].strip()
        if "pragma: no cover" in text:
            continue
        for replacement in _replacements(node):
            change = f"{_short(node)} -> {_short(replacement)}"
            if isinstance(node, ast.Constant):
                change += f" in {text}"
            counted[function, change] += 1
            if (count := counted[function, change]) > 1:
                change += f" ({count})"
            ast.copy_location(replacement, node)
            made = Mutant(file, function, change, lines, path, depth, replacement)
            if made.default is None or (isinstance(node, ast.Constant) and len(path) == depth + 2):
                found.append(made)
    return found


def _lines(tree: ast.AST, path: tuple[Step, ...], depth: int) -> range:
    function = _follow(tree, path[:depth])
    assert isinstance(function, Function)
    if path[depth] == ("args", None):  # which no line of the function tells
        first = _first_line(function)
        return range(first, first + 1)
    nodes = [_follow(tree, path[:length]) for length in range(depth, len(path) + 1)]
    statement = [node for node in nodes if isinstance(node, ast.stmt)][-1]
    node = nodes[-1]
    end = node.test if isinstance(node, ast.If | ast.While) else node
    last = getattr(end.target if isinstance(end, ast.comprehension) else end, "lineno", statement.lineno)
    return range(statement.lineno, last + 1)


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def _depth(tree: ast.AST, path: tuple[Step, ...]) -> int:
    """Return the number of steps to the outermost function."""
    return next(depth for depth in range(len(path)) if isinstance(_follow(tree, path[:depth]), Function))


def _short(node: ast.AST) -> str:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Constant) and node.test.value is False:
        return "pass"
    if isinstance(node, ast.Return) and isinstance(node.value, ast.IfExp) and _is_true(node.value.test):
        return "return None"
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else f"{text[:80]}...{text[-17:]}"


def _is_true(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _inside(node: ast.AST, function: str, path: tuple[Step, ...]) -> Iterator[tuple[ast.AST, str, tuple[Step, ...]]]:
    """Yield all nodes of functions that may change, each with the name of its function and the way to the node."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_comment", "bases"):
            continue
        for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _is_docstring(child) or _is_strict(child):
                continue
            steps = (*path, (field, place))
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _named(child, function, steps)
                continue
            if "()" in function:
                yield child, function, steps
            yield from _inside(child, function, steps)


def _named(
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, outer: str, path: tuple[Step, ...]
) -> Iterator[tuple[ast.AST, str, tuple[Step, ...]]]:
    if all(_is_docstring(statement) for statement in node.body):
        return  # a declaration
    name = f"{outer}.{node.name}" if outer else node.name
    yield from _inside(node, name if isinstance(node, ast.ClassDef) else f"{name}()", path)


def _is_strict(node: ast.AST) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _replacements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                changed = copy.deepcopy(node)
                changed.ops[place] = COMPARISONS[type(operator)]()
                yield changed
        case ast.BoolOp():
            yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield copy.deepcopy(node.operand)
        case ast.BinOp() if type(node.op) in ARITHMETIC and not _is_text(node):
            yield _with(node, op=ARITHMETIC[type(node.op)]())
        case ast.Constant():
            yield from _constants(node)
        case ast.Return(value=ast.expr() as value) if not _is_none_or_bool(value):
            # The value is still compiled, so a method that needs ``super()`` keeps its class.
            yield ast.Return(ast.IfExp(ast.Constant(True), ast.Constant(None), copy.deepcopy(value)))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield _with(node, func=ast.Name(CALLS[name], ast.Load()))
        case ast.comprehension() if node.ifs:
            yield _with(node, ifs=[])
    if isinstance(node, CONDITIONS) and not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
        yield _with(node, test=ast.UnaryOp(ast.Not(), copy.deepcopy(node.test)))
    yield from _statements(node)


def _is_none_or_bool(value: ast.expr) -> bool:
    """Whether a returned value is None, or a bool, which changes as a constant does."""
    return isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, bool))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.AugAssign() if type(node.op) in ARITHMETIC:
            yield _with(node, op=ARITHMETIC[type(node.op)]())
    removable = isinstance(node, ast.Expr) or (isinstance(node, REMOVED) and _keeps_state(node))
    if removable:
        # The statement is still compiled, so the function has the same variables, and stays a generator if it is one.
        yield ast.If(ast.Constant(False), [copy.deepcopy(node)], [])  # type: ignore[list-item]


def _keeps_state(node: ast.AST) -> bool:
    """Whether a statement changes an object, and not only a variable, which the code below needs."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        case ast.AugAssign():
            return True
    return False


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    match node.value:
        case bool() as value:
            yield ast.Constant(not value)
        case int() as value:
            yield ast.Constant(value + 1)
        case float() as value:
            yield ast.Constant(2 * value if value else 1.0)


def _is_text(node: ast.BinOp) -> bool:
    """Whether an operand is a string, so another operator only raises TypeError."""
    text = (ast.JoinedStr, ast.Constant)
    return any(
        isinstance(each, text) and isinstance(getattr(each, "value", ""), str) for each in (node.left, node.right)
    )


def _with(node: ast.AST, **changes: object) -> ast.AST:
    changed = copy.deepcopy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed
