"""Hidden folders to build in: those of killed processes go away, those of others stay."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hopfleet.support.files import beside, hidden

BUILDS = """
import os, pathlib, signal, sys
from hopfleet.support.files import beside

with beside(pathlib.Path(sys.argv[1])) as folder:
    (folder / "file").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_leaves_is_removed_and_what_others_build_stays(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    killed = subprocess.run([sys.executable, "-c", BUILDS, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(hidden(path))
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / f"{hidden(path)}link").symlink_to(other)
    with beside(path) as mine, beside(path) as again:
        assert not left.exists()
        assert mine.is_dir() and again.is_dir() and mine != again
        assert mine.stat().st_mode & 0o777 == 0o700
    assert sorted(each.name for each in tmp_path.iterdir()) == [f"{hidden(path)}link", "other"]


def test_a_folder_that_got_its_name_stays_and_one_that_failed_goes(tmp_path: Path) -> None:
    with beside(tmp_path / "set") as made:
        (made / "file").write_text("whole")
        made.rename(tmp_path / "set")
    with pytest.raises(ValueError, match="bad"), beside(tmp_path / "set"):
        raise ValueError("bad")
    assert [each.name for each in tmp_path.iterdir()] == ["set"]
    assert (tmp_path / "set" / "file").read_text() == "whole"
