"""Every snippet and command of the documentation runs, and the reference is complete."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import operator
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.domain.seeds import derive
from tests.helpers import warm
from tests.helpers.apart import passes_apart
from tests.helpers.marks import long
from tests.helpers.pages import EXTEND, FILE, ROOT, blocks, run_page

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MIGRATE = [page for page in PAGES if page.parent.name == "migrate" and page.name != "README.md"]
#: Pages about extensions run whole suites of tests, and pages about frameworks import large packages: they are slow. So
#: are the guide and other pages that run whole experiments.
LONG = {ROOT / "docs" / f"{name}.md" for name in ("guide", "prepare", "searching", "scheduling", "start")}
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
FRAMEWORKS = sorted((ROOT / "docs" / "frameworks").glob("*.md"))
#: tests/backends/test_ray_tutorial.py runs the first, on the cluster that tests share; test_twelve_lines.py the other.
ELSEWHERE = (ROOT / "docs" / "tutorials" / "cluster.md", ROOT / "docs" / "twelve-lines.md")
SLOW = {*EXTEND, *FRAMEWORKS, *LONG, *TUTORIALS}
#: Pages about frameworks whose tests run in sessions of their own.
ADAPTERS = [page for page in FRAMEWORKS if page.stem != "scikit-learn"]
SNIPPETS = [
    pytest.param(page, marks=[*[pytest.mark.slow] * (page in SLOW), *[pytest.mark.adapter] * (page in ADAPTERS)])
    for page in PAGES
    if page not in ELSEWHERE
]


@pytest.mark.parametrize("page", SNIPPETS, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.filterwarnings("ignore:.*rows have no prediction")  # which docs/prepare.md shows
def test_snippets_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """All Python of a page in one session, its commands in between, in a folder with the examples."""
    if page in FRAMEWORKS and passes_apart(request, page.stem):
        return
    if page.stem == "strategy":
        request.getfixturevalue("warm_compiler")
    run_page(page, tmp_path, monkeypatch)


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
