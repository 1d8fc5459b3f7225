"""The report as Markdown and as an HTML page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from itertools import groupby

from benchmarks.papers.contents import ENTRIES, Entry
from benchmarks.papers.section import Figure, How, Section

HEADER = ("what", "published", "ours", "ours / published", "how")
CONTENTS = ("table or figure", "what it shows", "published", "ours", "how, or why not")

INTRODUCTION = (
    "Hopfleet unites four systems. This page repeats their tables and figures as far as one machine allows: what the "
    "paper says, what we find, the ratio, and how it was obtained. Where a paper has a plot without numbers, its "
    "statement stands instead. `make papers` makes this page again in some minutes, `make papers FULL=1` with more "
    "seeds and real runs."
)

MEANINGS = {
    How.MEASURED: "in this run, on this machine",
    How.RECORDED: "in a longer run, recorded on another page",
    How.SIMULATED: "in virtual time, with the planners and the controller of real runs",
    How.FORMULA: "from the paper's formulas",
    How.NOT: "and the row or the remark says why",
}

STYLE = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: 0.9rem }
th, td { text-align: left; padding: 0.35rem 0.7rem; border-bottom: 1px solid #ddd; vertical-align: top }
table.figures { table-layout: fixed } table.figures th { width: 16% } table.figures th:first-child { width: 40% }
table.figures th:nth-child(4) { width: 12% } table.figures td:last-child { white-space: nowrap }
table.figures :is(th, td):is(:nth-child(3), :nth-child(4)) { text-align: right; font-variant-numeric: tabular-nums }
img { max-width: 100% } p.remark { color: #555 } h2 { margin-top: 3rem } code { font-size: 0.9em }
nav { columns: 2; font-size: 0.9rem } nav a { display: block }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #ddd } th, td { border-color: #333 }
p.remark { color: #aaa } img { background: #fff } }"""


def cells(row: Figure) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return row.what, row.published, row.ours, ratio, row.how.value


def contents(sections: Sequence[Section]) -> list[tuple[str, ...]]:
    """Return a row for every table and figure of the papers."""
    found: list[tuple[str, ...]] = []
    for entry in ENTRIES:
        row = _repeated(sections, entry) if entry.row else None
        how = f"not repeated: {entry.reason}" if row is None else row.how.value
        name = f"{entry.paper}, {entry.name[0].lower()}{entry.name[1:]}"
        found.append((name, entry.shows, entry.published, row.ours if row else "", how))
    return found


def _repeated(sections: Sequence[Section], entry: Entry) -> Figure:
    """Return the first row of a paper that begins as an entry says."""
    for row in (row for section in sections if section.paper == entry.paper for row in section.rows):
        if row.what.startswith(entry.row):
            return row
    raise ValueError(f"{entry.paper}, {entry.name}: no row begins with {entry.row!r}")


def worse(sections: Sequence[Section]) -> list[str]:
    """Return where ours is worse."""
    return [f"{section.paper}, {row.what}: {row.worse}" for section in sections for row in section.rows if row.worse]


def markdown(sections: Sequence[Section], where: str) -> str:
    lines = ["# The papers' tables, made again", "", INTRODUCTION, "", where, "", "| how | meaning |", "|---|---|"]
    lines += [f"| {how.value} | {meaning} |" for how, meaning in MEANINGS.items()]
    lines += ["", "## All tables and figures", "", f"| {' | '.join(CONTENTS)} |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in contents(sections)]
    lines += ["", "## Where ours is worse", "", *(f"- {each}" for each in worse(sections))]
    for paper, some in groupby(sections, key=lambda section: section.paper):
        lines += ["", f"## {paper}"]
        for section in some:
            lines += ["", f"### {section.title}", "", f"| {' | '.join(HEADER)} |", "|---|---|---|---|---|"]
            lines += [f"| {' | '.join(cells(row))} |" for row in section.rows]
            if section.remark:
                lines += ["", section.remark]
            for name, shows in section.pictures:
                lines += ["", f"![{shows}]({name})"]
    return "\n".join(lines) + "\n"


def page(sections: Sequence[Section], where: str) -> str:
    """Return the report as an HTML page; pictures lie beside it."""
    text = html.escape
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>The papers' tables, made again</title><style>{STYLE}</style><h1>The papers' tables, made again</h1>",
        f"<p>{_prose(INTRODUCTION)}</p><p class=remark>{text(where)}</p>",
        _table(("how", "meaning"), [(how.value, meaning) for how, meaning in MEANINGS.items()]),
        "<h2>All tables and figures</h2>",
        _table(CONTENTS, contents(sections), kind=" class=contents"),
        "<h2>Where ours is worse</h2>",
        "<ul>" + "".join(f"<li>{text(each)}</li>" for each in worse(sections)) + "</ul>",
        "<nav>" + "".join(f"<a href='#{_anchor(one)}'>{text(f'{one.paper}, {one.title}')}</a>" for one in sections),
        "</nav>",
    ]
    for paper, some in groupby(sections, key=lambda section: section.paper):
        parts.append(f"<h2>{text(paper)}</h2>")
        for section in some:
            parts.append(f"<h3 id='{_anchor(section)}'>{text(section.title)}</h3>")
            parts.append(_table(HEADER, [cells(row) for row in section.rows], kind=" class=figures"))
            if section.remark:
                parts.append(f"<p class=remark>{_prose(section.remark)}</p>")
            parts += [f"<p><img src='{text(name)}' alt='{text(shows)}'></p>" for name, shows in section.pictures]
    return "\n".join(parts) + "\n"


def _prose(text: str) -> str:
    """Return text as HTML, with what stands between backticks as code."""
    return re.sub("`(.+?)`", r"<code>\1</code>", html.escape(text, quote=False))


def _anchor(section: Section) -> str:
    return re.sub(r"\W+", "-", f"{section.paper} {section.title.partition(':')[0]}".lower())


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
