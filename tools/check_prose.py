"""Find retired names and awkward phrases in comments, docstrings, string literals, identifiers and Markdown.

    python tools/check_prose.py             list every hit as file:line: phrase -> suggestion
    python tools/check_prose.py --count     count the hits per folder
    python tools/check_prose.py src docs    look at these files and folders only

A line that needs a banned word, such as a name on disk or a deprecated alias, carries a marker with a reason:
``# prose: allow, a wire name`` in Python, ``<!-- prose: allow, the old name -->`` in Markdown. An identifier is checked
where a file defines it, not where it is used.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKED = (
    "src", "tests", "benchmarks", "tools", "examples", "docs", "deploy",
    "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md",
)  # fmt: skip
#: Files and folders that consist of banned words: this table, its tests, and what was written for release 0.1.
EXEMPT = ("tools/check_prose.py", "tests/tools/test_prose.py", "tests/fixtures/release_0_1")

#: Phrase and suggestion. A space in a phrase matches any white space, so a phrase may span two lines.
PHRASES: Sequence[tuple[str, str]] = (
    (r"(no|some|any|every)body", "name the component (worker, trial, caller, user) or use the passive voice"),
    (r"who(m|se)?ever", "name the component: any process that ..."),
    (r"for who", "for contributors, for users, ..."),
    (r"of (which|whom)", "whose, or repeat the noun"),
    (r"so many", "that many, or a name for the number"),
    (r"so long as", "while, as long as"),
    (r"as many as there are", "one per ..., all"),
    (r"(is|are|was|were) to be", "must be, will be"),
    (r"at the wheel", "control"),
    (r"say [`'\"]*\w+(?==)", "set ...=, pass ...="),
)
#: Retired word and suggestion, for prose and for identifiers.
WORDS: Sequence[tuple[str, str]] = (
    (r"zygotes?|nurser(y|ies)", "fork server"),
    (r"larders?", "shared batch cache"),
    (r"feeders?", "transform workers"),
    (r"sailors?|crews?|captains?", "members"),
    (r"whereabouts", "version locations"),
    (r"vacanc(y|ies)", "pending workers"),
    (r"scout(s|ed|ing)?", "discovery"),
    (r"stations?", "node agent"),
    (r"prospects?", "forecast"),
    (r"pilots?", "profiling"),
    (r"wish(es|ed)?", "request"),
    (r"entangled", "IsolationError, not isolated"),
    (r"habits?", "training options"),
    (r"obey(s|ed|ing)?", "execute"),
    (r"kin", "group key"),
)
#: Retired word and suggestion, for identifiers only: in prose, the word has a common meaning.
NAMES: Sequence[tuple[str, str]] = (
    (r"wheels?", "control"),
    (r"barren", "every trial failed"),
    (r"cramped", "out of memory"),
    (r"jointly", "joint optimizer"),
)
#: Files where a retired name is the field's word: a release consists of wheels.
UNLESS = {r"wheels?": ("tools/release/", "tests/tools/test_release.py")}
ALLOW = re.compile(r"prose: allow, \w")
#: Stands for a character that is code, so that no phrase reaches across it.
CODE = "\0"


@dataclass(frozen=True, slots=True)
class Hit:
    """A banned phrase or identifier, where it begins, and what to write instead."""

    file: str
    line: int
    phrase: str
    suggestion: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.phrase} -> {self.suggestion}"


def python_prose(source: str) -> str:
    """Return ``source`` with everything but comments and string literals blanked out, line by line."""
    lines = [re.sub(r"\S", CODE, line) for line in source.splitlines(keepends=True)]
    originals = source.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _PROSE:
            continue
        (first, start), (last, end) = token.start, token.end
        for number in range(first, last + 1):
            original = originals[number - 1]
            left = start if number == first else 0
            right = end if number == last else len(original)
            text = re.sub(r"#:?|[\"']", lambda match: " " * len(match[0]), original[left:right])
            if token.type == tokenize.STRING and _FSTRING.match(token.string):
                text = re.sub(r"\{[^{}]*\}", lambda match: CODE * len(match[0]), text)
            lines[number - 1] = lines[number - 1][:left] + text + lines[number - 1][right:]
    return "".join(lines)


#: From Python 3.12 on, the text of an f-string is a separate kind of token; before, the whole f-string is one token.
_PROSE = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
_FSTRING = re.compile(r"[rR]?[fF]")


def identifiers(file: str, source: str) -> Iterator[tuple[int, str]]:
    """List what a file defines, with lines: its module, classes, functions, arguments, variables and attributes."""
    path = Path(file)
    yield 1, path.parent.name if path.stem == "__init__" else path.stem
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.ClassDef(name=str(name))
                | ast.FunctionDef(name=str(name))
                | ast.AsyncFunctionDef(name=str(name))
                | ast.ExceptHandler(name=str(name))
            ):
                yield node.lineno, name
            case (
                ast.arg(arg=str(name))
                | ast.alias(asname=str(name))
                | ast.Name(id=str(name), ctx=ast.Store())
                | ast.Attribute(attr=str(name), ctx=ast.Store())
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                # The name of an attribute ends the expression, which may have begun on an earlier line.
                yield node.end_lineno or node.lineno, name


def words_in(identifier: str) -> list[str]:
    """Split an identifier into its words, at underscores, digits and capital letters."""
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)


def unreleased(changelog: str) -> str:
    """Return the changelog with all releases but the unreleased one blanked out."""
    sections = re.split(r"(?m)^(?=## )", changelog)
    return "".join(re.sub(r"\S", CODE, part) if part.startswith("## 0.1.0") else part for part in sections)


def hits(file: str, text: str) -> Iterator[Hit]:
    """Find the banned phrases and identifiers in one file, given its path and contents."""
    allowed = {number for number, line in enumerate(text.splitlines(), 1) if ALLOW.search(line)}
    found = [*prose_hits(file, text), *(identifier_hits(file, text) if file.endswith(".py") else ())]
    yield from (hit for hit in found if hit.line not in allowed)


def prose_hits(file: str, text: str) -> Iterator[Hit]:
    """Find the banned phrases in the prose of a file, on all lines."""
    view = text
    if file.endswith(".py"):
        view = python_prose(text)
    elif Path(file).name == "CHANGELOG.md":
        view = unreleased(text)
    for pattern, suggestion in (*PHRASES, *WORDS):
        words = pattern.replace(" ", r"\s+")
        for match in re.finditer(rf"\b(?:{words})\b", view, re.IGNORECASE):
            yield Hit(file, view.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), suggestion)


def identifier_hits(file: str, source: str) -> Iterator[Hit]:
    """Find the identifiers that a Python file defines and that have a retired word, on all lines."""
    for line, name in identifiers(file, source):
        for pattern, suggestion in (*WORDS, *NAMES):
            retired = any(re.fullmatch(pattern, part, re.IGNORECASE) for part in words_in(name))
            if retired and not file.startswith(UNLESS.get(pattern, ())):
                yield Hit(file, line, name, suggestion)


def files(names: Sequence[str], root: Path = ROOT) -> Iterator[Path]:
    """List the Python and Markdown files among ``names`` and in the folders among them, without the exempt ones."""
    exempt = [root / name for name in EXEMPT]
    for name in names:
        path = root / name
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        checked = (each for each in found if each.suffix in {".py", ".md"})
        yield from (each for each in checked if not any(map(each.is_relative_to, exempt)))


def check(names: Sequence[str], root: Path = ROOT) -> list[Hit]:
    """Return the hits in all files, in the order of files and lines."""
    found: list[Hit] = []
    for path in files(names, root):
        inside = hits(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        found += sorted(inside, key=lambda hit: hit.line)
    return found


def folder(file: str) -> str:
    """Return the part of a path that ``--count`` groups by: a package of the source, or a document."""
    parts = Path(file).parts
    return "/".join(parts[:3] if parts[0] == "src" and len(parts) > 3 else parts[:2])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the hits and return 1 if there are any."""
    parser = argparse.ArgumentParser(description="Find retired names and awkward phrases.")
    parser.add_argument("names", nargs="*", default=CHECKED, help="files and folders, relative to the repository")
    parser.add_argument("--count", action="store_true", help="count the hits per folder")
    options = parser.parse_args(arguments)
    found = check(options.names)
    if options.count:
        for name, number in sorted(Counter(folder(hit.file) for hit in found).items()):
            print(f"{number:5d} {name}")
    else:
        print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(found)} banned phrases and identifiers", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
