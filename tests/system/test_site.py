"""The site: pages for all errors and all public names, figures as the code draws them, links that lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet import errors, extend
from tools.draw_figures import FIGURES, FOLDER

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = "".join(page.read_text() for page in (DOCS / "reference").glob("*.rst"))
CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, BaseException)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_of_error_has_a_page(kind: type[errors.HopfleetError]) -> None:
    assert "code" in vars(kind), "a code of its own"
    page = DOCS / "errors" / f"{kind.code}.md"
    assert page.read_text().startswith(f"# {kind.code}: {kind.__name__}\n")
    assert f"| [{kind.code}]({kind.code}.md) | `{kind.__name__}` |" in (DOCS / "errors" / "README.md").read_text()


def test_every_page_of_an_error_has_a_class() -> None:
    pages = [page.stem for page in (DOCS / "errors").glob("HF*.md")]
    assert sorted(pages) == sorted(kind.code for kind in CLASSES)


@pytest.mark.parametrize("name", hop.__all__)
def test_the_reference_has_every_public_name(name: str) -> None:
    assert re.search(rf"^\.\. auto\w+:: hopfleet\.{name}$|automodule:: hopfleet\.errors", REFERENCE, re.MULTILINE)
    if f":: hopfleet.{name}\n" not in REFERENCE:
        assert getattr(hop, name) in CLASSES


@pytest.mark.parametrize("name", extend.__all__)
def test_the_reference_has_every_name_for_extensions(name: str) -> None:
    assert f":: hopfleet.extend.{name}\n" in REFERENCE or f"``{name}``" in REFERENCE or f"extend.{name}``" in REFERENCE


def test_the_reference_has_no_other_name() -> None:
    named = re.findall(r"^\.\. auto(?!module)\w+:: hopfleet\.(\w+)$", REFERENCE, re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(named) <= set(hop.__all__)


@pytest.mark.parametrize("name", ["search", "genindex", "py-modindex"])
def test_no_page_has_the_name_of_one_that_sphinx_makes(name: str) -> None:
    assert not list(DOCS.glob(f"{name}.*"))


def test_the_glossary_is_short() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", (DOCS / "concepts.md").read_text(), re.MULTILINE)
    assert len(words) == len(set(words)) <= 30


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.__name__)
def test_figures_are_as_the_code_draws_them(figure: type) -> None:
    drawn = (FOLDER / f"{figure.__name__}.svg").read_text()
    assert drawn == figure().svg(), "draw them again: python tools/draw_figures.py"


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    """Tutorials are not run here: test_docs.py runs them."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", tmp_path / "trees"]
    site = tmp_path / "site"
    done = subprocess.run(
        [*command, DOCS, site],
        env={**os.environ, "HOPFLEET_SITE_NOTEBOOKS": "off"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    places = {page: {*re.findall(r' id="([^"]+)"', text)} for page, text in pages.items()}
    problems = [
        f"{page.relative_to(site)}: {link}"
        for page, text in pages.items()
        for link in set(re.findall(r'<(?:a|link|img|script)\b[^>]* (?:href|src)="([^"]*)"', text))
        if not leads_somewhere(page, link, places)
    ]
    assert not problems
    loaded = {
        link for text in pages.values() for link in re.findall(r'<(?:link|img|script)\b[^>]*"(https?:[^"]*)"', text)
    }
    assert not loaded, "the site works offline"
    assert (site / "searchindex.js").exists()


def leads_somewhere(page: Path, link: str, places: dict[Path, set[str]]) -> bool:
    if re.match(r"[a-z]+:|data:", link):
        return True
    path, _, place = link.partition("#")
    target = (page.parent / path.partition("?")[0]).resolve() if path else page
    if target not in places:
        return target.exists()
    return not place or place in places[target]
