"""The checker of prose finds banned phrases in prose and retired words in identifiers, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import check_prose
from tools.check_prose import CHECKED, EXEMPT, NAMES, PHRASES, ROOT, WORDS, check, folder, hits, main, words_in


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


def test_no_phrase_is_found_in_code() -> None:
    assert found("members = wishes(pilot, somebody=kin)\nso, many = of, which\n") == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("class StationCounter: ...", "StationCounter"),
        ("def tell_crew(): ...", "tell_crew"),
        ("async def obey(): ...", "obey"),
        ("def f(vacancies): ...", "vacancies"),
        ("def f(*, pilot=1): ...", "pilot"),
        ("def f(*crews): ...", "crews"),
        ("f = lambda kin: 0", "kin"),
        ("MOST_WISHES = 1", "MOST_WISHES"),
        ("a, (b, scout) = c", "scout"),
        ("wheel: int", "wheel"),
        ("self._cramped = True", "_cramped"),
        ("for habit in habitat: ...", "habit"),
        ("with f() as captain: ...", "captain"),
        ("try: ...\nexcept OSError as entangled: ...", "entangled"),
        ("import queue as larder", "larder"),
        ("print(barren := 1)", "barren"),
        ("match a:\n    case [feeder, _]: ...", "feeder"),
        ("match a:\n    case [first, *sailors]: ...", "sailors"),
        ("match a:\n    case {**whereabouts}: ...", "whereabouts"),
    ],
)
def test_identifiers_are_checked_where_they_are_defined(source: str, name: str) -> None:
    assert found(source) == [(1 + source.count("\n"), name)]
    assert found(f"{source}  # prose: allow, a wire name") == []


def test_uses_of_identifiers_are_not_checked() -> None:
    assert found("from other import Zygote, larder\nlarder.open(Zygote().crew, kin=other.whereabouts)\n") == []


def test_names_of_modules_and_packages_are_checked() -> None:
    assert found("x = 1\n", "src/hopfleet/crew/boat.py") == []
    assert found("x = 1\n", "src/hopfleet/crew/__init__.py") == [(1, "crew")]
    assert found("x = 1\n", "src/hopfleet/node_stations.py") == [(1, "node_stations")]
    assert found("# prose: allow, the old name\n", "src/hopfleet/larder.py") == []


def test_an_attribute_is_found_on_its_own_line() -> None:
    assert found("(\n    self\n    .kin\n) = 1\n") == [(3, "kin")]
    assert found("(\n    self  # prose: allow, this is another line\n    .kin\n) = 1\n") == [(3, "kin")]


def test_identifiers_are_split_into_words() -> None:
    assert words_in("__HTTPServerOf_two2Trials") == ["HTTP", "Server", "Of", "two", "Trials"]
    assert found("kind = wishbone = Feederless = captaincy = habitat = skin = CREWED = 1\n") == []
    assert [phrase for _, phrase in found("CUDAKin = kin2 = _KIN_OF = theKin = 1\n")] == [
        "CUDAKin", "kin2", "_KIN_OF", "theKin",
    ]  # fmt: skip


def test_names_that_are_retired_in_code_alone_may_occur_in_prose() -> None:
    source = "# A wheel, jointly built.\n"
    assert found(source + "wheel = jointly = 1\n") == [(2, "wheel"), (2, "jointly")]


def test_a_release_has_wheels() -> None:
    assert found("wheel = kin = 1\n", "tools/release/build.py") == [(1, "kin")]
    assert found("wheel = 1\n", "tools/releases.py") == [(1, "wheel")]


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
    for pattern, suggestion in (*PHRASES, *WORDS, *NAMES):
        assert re.compile(pattern) and suggestion


def test_what_is_checked_by_default_exists() -> None:
    assert all((ROOT / name).exists() for name in (*CHECKED, *EXEMPT))


def test_exempt_files_are_left_out(tmp_path: Path) -> None:
    for name in ("tools/check_prose.py", "tools/check_house.py", "tests/fixtures/release_0_1/make.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("wish = 1\n")
    assert [hit.file for hit in check(["tools", "tests", "tools/check_prose.py"], tmp_path)] == ["tools/check_house.py"]


def test_hits_are_reported_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("Fine.\nSo many pilots.\n")
    (tmp_path / "docs" / "a.png").write_bytes(b"pilot")
    assert [str(hit) for hit in check(["docs"], tmp_path)] == [
        "docs/a.md:2: So many -> that many, or a name for the number",
        "docs/a.md:2: pilots -> profiling",
    ]
    assert folder("src/hopfleet/data/etl/a.py") == "src/hopfleet/data" and folder("docs/a.md") == "docs/a.md"
    assert main(["LICENSE"]) == 0
    monkeypatch.setattr(check_prose, "check", lambda names: check(names, tmp_path))
    assert main(["docs", "--count"]) == 1
    assert capsys.readouterr().out == "    2 docs/a.md\n"
