"""Every snippet and command of the documentation runs, and the reference is complete."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import operator
import os
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.domain.seeds import derive
from tests.helpers import warm
from tests.helpers.apart import passes_apart
from tests.helpers.marks import long
from tests.helpers.pages import EXTEND, ROOT, blocks

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MIGRATE = [page for page in PAGES if page.parent.name == "migrate" and page.name != "README.md"]
FILE = re.compile(r"# ([\w.]+\.py)\n")
"""The first line of a block that is a file of its own."""

#: Commands that other tests run, or that need what a test must not touch; each is checked to exist.
ELSEWHERE = {"make", "pip"}


#: Pages about extensions run whole suites of tests, and pages about frameworks import large packages: they are slow. So
#: are the guide and other pages that run whole experiments.
LONG = {ROOT / "docs" / f"{name}.md" for name in ("guide", "prepare", "search", "scheduling", "start")}
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
FRAMEWORKS = sorted((ROOT / "docs" / "frameworks").glob("*.md"))
SLOW = {*EXTEND, *FRAMEWORKS, *LONG, *TUTORIALS}
#: Pages about frameworks whose tests run in sessions of their own.
ADAPTERS = [page for page in FRAMEWORKS if page.stem != "scikit-learn"]
SNIPPETS = [
    pytest.param(page, marks=[*[pytest.mark.slow] * (page in SLOW), *[pytest.mark.adapter] * (page in ADAPTERS)])
    for page in PAGES
]


@pytest.mark.parametrize("page", SNIPPETS, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """All Python of a page in one session, its commands in between, in a folder with the examples."""
    if page in FRAMEWORKS and passes_apart(request, page.stem):
        return
    if page in TUTORIALS and page.stem == "cluster" and passes_apart(request, "ray"):
        return  # the cluster that it starts is not in the way of others
    if page.stem == "strategy":
        request.getfixturevalue("warm_compiler")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.syspath_prepend(str(tmp_path))
    session: dict[str, object] = {"__name__": "__main__"}
    for language, text in blocks(page):
        if language == "python" and (file := FILE.match(text)):
            (tmp_path / file[1]).write_text(text)
        elif language == "python":
            exec(compile(text, str(page), "exec"), session)
        elif language == "toml":
            install(tmp_path, tomllib.loads(text)["project"])
        elif language == "bash":
            for line in text.splitlines():
                run_command(line, tmp_path)
    for name in [name for name, module in sys.modules.items() if lies_in(module, tmp_path)]:
        del sys.modules[name]


def conversion(page: Path) -> list[str]:
    """The lines of the diff that turns a script into one for Hopfleet."""
    return next(text for language, text in blocks(page) if language == "diff").splitlines()


@pytest.mark.parametrize("page", FRAMEWORKS, ids=lambda page: page.stem)
def test_a_script_is_converted_in_few_lines(page: Path) -> None:
    for sign in "+-":
        changed = [line for line in conversion(page) if line.startswith(sign) and line[1:].strip()]
        assert 1 < len(changed) <= 15


@pytest.mark.slow
@pytest.mark.adapter
@pytest.mark.parametrize("name", ["keras", "lightning", "transformers"])
@pytest.mark.parametrize("sign", [pytest.param("-", marks=long), "+"], ids=["before", "after"])
def test_scripts_run_before_and_after_their_conversion(name: str, sign: str, tmp_path: Path) -> None:
    lines = conversion(ROOT / "docs" / "frameworks" / f"{name}.md")
    assert "import " in lines[0], "the diff is of a whole script"
    script = tmp_path / "script.py"
    text = "\n".join(line[1:] for line in lines if line[:1] in ("", " ", sign))
    # In one process, since each worker would import the framework again; the examples have workers.
    script.write_text(text.replace(").fit()", ', backend="inline").fit()'))
    here = {**os.environ, "KERAS_BACKEND": "torch", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    if name == "transformers":
        warm.run([sys.executable, "-m", "tests.helpers.tiny_bert"], cwd=tmp_path, env=here, check=True)
    done = warm.run([sys.executable, str(script)], cwd=tmp_path, env=here, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", MIGRATE, ids=lambda page: page.stem)
def test_what_others_move_to_exists(page: Path) -> None:
    """The script after a move is Python, and its calls have the names and arguments of Hopfleet."""
    script = "\n".join(line[1:] for line in conversion(page) if line[:1] in ("", " ", "+"))
    calls = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)]
    named = {ast.unparse(call.func): {word.arg for word in call.keywords if word.arg} for call in calls}
    assert "hop.Experiment" in named
    # Tasks of other frameworks import large packages.
    for name in [name for name in named if re.fullmatch(r"hop\.[\w.]+", name) and "Task" not in name]:
        parameters = inspect.signature(operator.attrgetter(name.removeprefix("hop."))(hop)).parameters
        assert named[name] <= parameters.keys(), name


def install(folder: Path, project: dict[str, Any]) -> None:
    """Install the distribution that a ``pyproject.toml`` describes into a folder on the path."""
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines: list[str] = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    importlib.invalidate_caches()


def lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).parent == folder


def run_command(line: str, folder: Path) -> None:
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[0] in ELSEWHERE:
        check_exists(words)
        return
    if words[0] == "hopfleet":
        words = [sys.executable, "-m", *words]
    elif words[0] == "python":
        words[0] = sys.executable
    done = warm.run(words, cwd=folder, text=True)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def check_exists(words: list[str]) -> None:
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets), words
    else:
        extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
        for wanted in re.findall(r"\[(.*?)\]", " ".join(words)):
            assert set(wanted.split(",")) <= extras, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#]*)(#[^)]+)?\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not heading or heading in anchors(linked), target + heading


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_reference_names_everything_public() -> None:
    reference = (ROOT / "docs" / "api.md").read_text()
    for name in hop.__all__:
        assert f"hop.{name}" in reference, name
    parameters = list(inspect.signature(hop.Experiment.__init__).parameters.values())[1:]
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    options = [field.name for group in (hop.RunOptions, hop.WorkerOptions) for field in dataclasses.fields(group)]
    for name in (*names, *options):
        assert f"| `{name}` |" in reference, name


def test_seeds_can_be_derived_by_hand() -> None:
    page: dict[str, Any] = {}
    snippet = next(text for language, text in blocks(ROOT / "docs" / "concepts.md") if language == "python")
    exec(snippet, page)
    for names in [(), ("trial", 1), ("order", 3, 0), ("transform", 2, 15, 400), ("µ", 0.5)]:
        assert page["derive"](7, *names) == derive(7, *names)


@pytest.mark.parametrize("page", [page for page in EXTEND if page.name != "README.md"], ids=lambda page: page.name)
def test_an_extension_is_one_short_file_and_its_test(page: Path) -> None:
    files = {file[1]: text for language, text in blocks(page) if language == "python" and (file := FILE.match(text))}
    example, test = files
    assert test == f"test_{example}"
    assert len(files[example].splitlines()[1:]) < 60, "without the line with its name"
    assert (
        f"[{page.name.removesuffix('.md').replace('-', ' ')}]({page.name})" in (page.parent / "README.md").read_text()
    )


def test_the_first_experiment_is_short() -> None:
    snippet = next(text for language, text in blocks(ROOT / "README.md") if language == "python")
    assert len(snippet.splitlines()) < 30


def test_the_architecture_fits_on_a_page() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) < 80
