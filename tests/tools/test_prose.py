"""The checker of prose finds banned phrases where people read, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.check_prose import BANNED, check, folder, hits, main


def found(text: str, file: str = "src/hopfleet/a.py") -> list[tuple[int, str]]:
    return [(hit.line, hit.phrase) for hit in hits(file, text)]


def test_comments_docstrings_and_messages_are_read() -> None:
    source = '''"""Nobody reads this."""
x = 1  # so many
def f(y):
    """Return it.

    Whoever calls this.
    """
    raise ValueError(f"{y}: somebody asked")
'''
    assert sorted(found(source)) == [(1, "Nobody"), (2, "so many"), (6, "Whoever"), (8, "somebody")]


def test_code_is_not_read() -> None:
    assert found("feeders = wishes(pilot, somebody=kin)\nso, many = of, which\n") == []


def test_expressions_in_f_strings_are_code() -> None:
    assert found('text = f"{station.name}: no {wheel!r} for somebody"\n') == [(1, "somebody")]


def test_a_phrase_may_span_lines_but_not_code() -> None:
    assert found("# versions of\n# which none is left\n") == [(1, "of which")]
    assert found('text = ("so "\n        "many units")\n') == [(1, "so many")]
    assert found('words = ["so", "many"]\n') == []
    assert found("x = 1  # of\nwhich = 2\n") == []


def test_parts_of_words_do_not_count() -> None:
    assert found("# wishful, wheelbarrow, kind, skin, pilot_study, somebody_else, obeyance\n") == []


def test_how_to_write_an_argument() -> None:
    assert found("""raise ValueError("metric='loss': say mode='min'")\n""") == [(1, "say mode")]
    assert found("Or say `fuse='off'`, they say.\n", "docs/a.md") == [(1, "say `fuse")]


def test_a_marker_needs_a_reason() -> None:
    assert found('NAME = "wish"  # prose: allow, a wire name\n') == []
    assert found('NAME = "wish"  # prose: allow\n') == [(1, "wish")]
    assert found("`wishes` <!-- prose: allow, the old name -->\n", "docs/a.md") == []


def test_old_releases_keep_their_words() -> None:
    changelog = "# Changelog\n\n## Unreleased\n\n- No zygote.\n\n## 0.2.0\n\n- No crew.\n\n## 0.1.0\n\n- A zygote.\n"
    assert found(changelog, "CHANGELOG.md") == [(5, "zygote"), (9, "crew")]


def test_every_phrase_has_a_suggestion() -> None:
    for pattern, suggestion in BANNED:
        assert re.compile(pattern) and suggestion


def test_hits_are_reported_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("Fine.\nSo many pilots.\n")
    (tmp_path / "docs" / "a.png").write_bytes(b"pilot")
    assert [str(hit) for hit in check(["docs"], tmp_path)] == [
        "docs/a.md:2: So many -> that many, or a name for the number",
        "docs/a.md:2: pilots -> profiling",
    ]
    assert folder("src/hopfleet/data/etl/a.py") == "src/hopfleet/data" and folder("docs/a.md") == "docs/a.md"
    assert main(["tools/check_prose.py", "--count"]) == 1
    assert "tools/check_prose.py" in capsys.readouterr().out
    assert main(["LICENSE"]) == 0
