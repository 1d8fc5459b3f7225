"""The site: what Sphinx makes of the pages in this folder. `make site` builds it into build/site."""

from __future__ import annotations

import os
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
ROOT = HERE.parent

project = "Hopfleet"
author = "The authors of Hopfleet"
project_copyright = author
extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "index"
nitpicky = True
# Types of other packages, and of Hopfleet's own modules: there is nothing on this site that they could link to.
nitpick_ignore_regex = [("py:.*", r"(?!hopfleet\.\w+$).*")]

myst_enable_extensions = ["attrs_block", "colon_fence"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Frameworks take many seconds to import, and their types are not described here.
autodoc_mock_imports = ["flax", "jax", "keras", "lightning", "optax", "peft", "transformers"]

# Notebooks run once, in make site; tests run the same snippets without a kernel (tests/system/test_docs.py).
nb_execution_mode = os.environ.get("HOPFLEET_SITE_NOTEBOOKS", "cache")
nb_execution_cache_path = str(ROOT / "build" / "site-notebooks")
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True

html_theme = "furo"
html_title = "Hopfleet"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"

NOTEBOOKS = re.compile(r"start|tutorials/(?!README)")
FRONT = """---
file_format: mystnb
kernelspec: {name: python3}
language_info: {name: python, pygments_lexer: python}
---
"""
"""What makes a notebook of a page."""

SHOWN = {
    "ARCHITECTURE.md": "project/architecture",
    "CHANGELOG.md": "project/changelog",
    "CONTRIBUTING.md": "project/contributing",
    "deploy": "project/by-hand",
    "deploy/autoscaling.md": "project/autoscaling",
    "deploy/by-hand.md": "project/by-hand",
    "deploy/grafana": "project/grafana",
    "deploy/grafana/README.md": "project/grafana",
    "deploy/jobs.md": "project/jobs",
    "deploy/kubernetes": "project/kubernetes",
    "deploy/kubernetes/README.md": "project/kubernetes",
    "README.md": "index",
}
"""Files outside this folder, and the pages that show them."""

SOURCES = {page: ROOT / file for file, page in SHOWN.items() if file.endswith(".md") and page != "index"}

LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)]*)?\)")


def relinked(text: str, file: Path, page: str) -> str:
    """Return the text of a file with its links as they lead from a page of the site."""
    folder = (HERE / page).parent

    def link(found: re.Match[str]) -> str:
        target = os.path.normpath(file.parent / found[1])
        shown = SHOWN.get(os.path.relpath(target, ROOT))
        return f"]({os.path.relpath(HERE / f'{shown}.md' if shown else target, folder)}{found[2] or ''})"

    return LINK.sub(link, text)


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Put a file from elsewhere in the place of its page, let links lead to pages, and make notebooks of tutorials.

    The page of a folder has the pages that it links to below it.
    """
    file = SOURCES.get(page, HERE / f"{page}.md")
    if file.suffix == ".md" and file.exists():
        text = file.read_text(encoding="utf-8") if page in SOURCES else source[0]
        source[0] = relinked(text, file, page)
    if page.endswith("/README"):
        pages = dict.fromkeys(re.findall(r"\]\(([\w-]+)\.md\)", source[0]))
        source[0] += "\n:::{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n:::\n" if pages else ""
    if NOTEBOOKS.match(page):
        source[0] = FRONT + source[0].replace("```python\n", "```{code-cell} python\n")


def inline_figures(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Put drawn figures into the page itself, so that they follow its theme."""
    for image in list(tree.findall(nodes.image)):
        if "/figures/" in image["uri"]:
            svg = (HERE / image["uri"]).read_text(encoding="utf-8")
            label = f'aria-label="{escape(image["alt"])}"'
            svg = re.sub(r'aria-label="[^"]*"', label.replace("\\", ""), svg, count=1)
            image.replace_self(nodes.raw("", f'<div class="figure">{svg}</div>', format="html"))


def setup(app: Sphinx) -> None:
    app.connect("source-read", read)
    app.connect("doctree-resolved", inline_figures)
