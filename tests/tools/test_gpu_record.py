"""The record of tests on a GPU: which changes it finds, which it does not mind, and what is pending."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import check_gpu_record
from tools.check_gpu_record import CODE, RECORD, ROOT, check, counted, hashes, load, normalized, waive, write

ENGINE = f"{CODE[2]}/engines/one.py"
SOURCE = '"""An engine."""\n\n\ndef step(x: int) -> int:\n    """Step."""\n    return x + 1  # a comment\n'
REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"/><testcase name="c"><skipped type="pytest.skip"/></testcase>{more}
</testsuite></testsuites>"""
MACHINE = {"torch": "2.0", "cuda": "12.0", "device": "a GPU"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose record matches its code."""
    for name in (CODE[0], f"{CODE[1]}/tree.py", ENGINE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SOURCE)
    (tmp_path / RECORD).parent.mkdir(parents=True)
    (tmp_path / "report.xml").write_text(REPORT.format(more=""))
    write(tmp_path / "report.xml", MACHINE, tmp_path)
    return tmp_path


def test_a_record_says_what_was_tested(root):
    record = load(root)
    assert {name: record[name] for name in MACHINE} == MACHINE
    assert record["tests"] == {"passed": 2, "skipped": 1}
    assert sorted(record["files"]) == sorted([CODE[0], f"{CODE[1]}/tree.py", ENGINE])
    assert record["commit"] and record["date"]
    assert check(root) == 0


def test_a_changed_file_is_found(root, capsys):
    (root / ENGINE).write_text(SOURCE.replace("+ 1", "+ 2"))
    assert check(root) == 1
    said = capsys.readouterr().out
    assert ENGINE in said and CODE[0] not in said
    assert "run `make gpu` on a machine with an NVIDIA GPU and commit the record" in said


def test_new_and_removed_files_are_found(root, capsys):
    (root / CODE[2] / "new.py").write_text("")
    (root / ENGINE).unlink()
    assert check(root) == 1
    said = capsys.readouterr().out
    assert f"{CODE[2]}/new.py" in said and ENGINE in said


@pytest.mark.parametrize(
    "source",
    [
        SOURCE.replace("# a comment", "# another one"),
        SOURCE.replace("Step.", "Take a step.").replace("An engine.", "The engine."),
        SOURCE.replace("    return x + 1", "    return (\n        x + 1\n    )"),
        SOURCE.replace('    """Step."""\n', ""),
    ],
    ids=["comment", "docstring", "format", "no docstring"],
)
def test_comments_docstrings_and_formatting_do_not_matter(root, source, capsys):
    (root / ENGINE).write_text(source)
    assert check(root) == 0
    assert capsys.readouterr().out == ""


def test_values_and_names_matter():
    sources = ["x = 1", "x = 1.0", "x = '1'", "y = 1", "x: int = 1", "x = f'{1}'", "x = [1]", "x = (1,)", "x == 1"]
    assert len({normalized(source) for source in sources}) == len(sources)


def test_the_text_does_not_depend_on_the_version_of_python():
    assert normalized("def f(x, *, y=None): return *x, 1") == (
        "Module(body=[FunctionDef(name='f',args=arguments(args=[arg(arg='x')],kwonlyargs=[arg(arg='y')],"
        "kw_defaults=[Constant()]),body=[Return(value=Tuple(elts=[Starred(value=Name(id='x')),Constant(value=1)]))])])"
    )


def test_pending_passes_with_a_warning(root, capsys):
    (root / ENGINE).write_text(SOURCE.replace("+ 1", "+ 2"))
    waive("no GPU at hand", root)
    assert check(root) == 0
    said = capsys.readouterr().out
    assert said.startswith("warning: 1 file untested on a GPU since ") and "(no GPU at hand)" in said
    assert load(root)["tests"] == {"passed": 2, "skipped": 1}, "the record of the last run stays"
    (root / ENGINE).write_text(SOURCE.replace("+ 1", "+ 3"))
    assert check(root) == 1, "a waiver holds for the code that it was made for"
    (root / ENGINE).unlink()
    waive("removed", root)
    assert check(root) == 0
    (root / ENGINE).write_text(SOURCE)
    waive("as it was", root)
    assert "pending" not in load(root)


def test_a_run_ends_what_was_pending(root, capsys):
    (root / ENGINE).write_text(SOURCE.replace("+ 1", "+ 2"))
    waive("no GPU at hand", root)
    write(root / "report.xml", MACHINE, root)
    assert check(root) == 0 and capsys.readouterr().out == ""


@pytest.mark.parametrize("more", ['<testcase name="d"><failure/></testcase>', '<testcase name="d"><error/></testcase>'])
def test_failed_tests_make_no_record(root, more):
    before = (root / RECORD).read_text()
    (root / "report.xml").write_text(REPORT.format(more=more))
    with pytest.raises(SystemExit, match="1 tests failed, 2 passed: no record is made"):
        write(root / "report.xml", MACHINE, root)
    assert (root / RECORD).read_text() == before
    assert counted(REPORT.format(more=more)) == {"passed": 2, "skipped": 1, "failed": 1}


def test_without_a_record_all_files_are_pending(root):
    (root / RECORD).unlink()
    assert check(root) == 1
    waive("the first run is still to come", root)
    assert check(root) == 0
    assert json.loads((root / RECORD).read_text())["pending"]["files"] == hashes(root)


def test_a_waiver_needs_a_reason(capsys):
    with pytest.raises(SystemExit):
        check_gpu_record.main(["--pending", " "])
    assert "set REASON" in capsys.readouterr().err


def test_the_code_of_this_repository_is_covered():
    assert {path.split("/")[-1] for path in hashes(ROOT)} >= {"cuda_graphs.py", "capture.py", "stack.py", "base.py"}
