"""Mistakes on the command line."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.mistakes import CommandFailed, Mistake, command, copy_finished

SCRIPTS = {
    "empty.py": "import hopfleet as hop\n",
    "raises.py": "x = 1\ny = x / 0\n",
    "syntax.py": "def f(:\n",
    "two.py": "from tests.helpers.mistakes import experiment\na, b = experiment(name='a'), experiment(name='b')\n",
}


def typed(line: str, *says: str) -> Mistake:
    """A command, after an experiment with the name ``e``, in a folder with the scripts above."""

    def run() -> None:
        copy_finished()
        for name, text in SCRIPTS.items():
            Path(name).write_text(text, encoding="utf-8")
        command(*line.split())

    return Mistake(f"hopfleet {line}", run, CommandFailed, says)


MISTAKES = [
    typed("shwo e", "'shwo'", "Did you mean 'show'?", "hopfleet --help"),
    typed("show ee", "'ee'", "no such experiment", "there are: e"),
    typed("show", "Missing argument 'NAME'", "hopfleet show --help"),
    typed("show e --trial t9", "'t9'", "no such trial", "t0001"),
    typed("ls --what", "No such option", "--what", "hopfleet ls --help"),
    typed("best ee", "'ee'", "no such experiment", "there are: e"),
    typed("run nothing.py", "'nothing.py'", "no such file", "defines a hop.Experiment"),
    typed("run empty.py", "empty.py", "has no experiment", "experiment = hop.Experiment(...)"),
    typed("run raises.py", "raises.py, line 2", "ZeroDivisionError"),
    typed("run syntax.py", "syntax.py, line 1", "SyntaxError"),
    typed("run two.py", "two.py", "several experiments (a, b)", "two.py:a"),
    typed("run two.py:c", "two.py:c", "is not an experiment", "a, b"),
    typed("run two.py:a --workers 0", "workers=0", "at least 1"),
    typed("run two.py:a --backend lokal", "backend='lokal'", "did you mean 'local'?"),
    typed("run two.py:a --epochs 3", "--epochs", "hopfleet run --help"),
    typed("resume ee", "'ee'", "no such experiment", "there are: e"),
    typed("stop e t9", "'t9'", "no such trial"),
    typed("stop e t0001", "t0001 is completed", "cannot be stopped"),
    typed("add e", "lr is missing", "the keys are lr"),
    typed("extend e", "nothing to add", "give trials, epochs or dimensions"),
    typed("extend e --trials x", "--trials", "integer"),
    typed("plot e --kind curve", "'curve'", "curves"),
    typed("plot e bars", "'bars'", "curves, gantt, importance"),
    typed("plot e curve", "'curve'", "did you mean 'curves'?"),
    typed("plot e gantt --kind curves", "plot e gantt --kind curves", "one kind of chart"),
    typed("tune empty.py", "'tune'", "type hopfleet run FILE.py"),
    typed("logs e", "'logs'", "hopfleet show NAME --trial TRIAL"),
    typed("rm e", "'rm'", "hopfleet delete NAME TRIAL"),
    typed("show e t0001", "(t0001)", "type --trial t0001"),
    typed("add e lr=0.1", "(lr=0.1)", "type --set lr=0.1"),
    typed("ls e", "(e)", "hopfleet ls --help"),
    typed("add e --set lr=abc", "lr='abc'", "must be a number"),
    typed("resume e --epochs 5", "--epochs 5", "hopfleet extend"),
    typed("run empty.py --json", "--json", "needs --preview"),
    typed("export e", "no file given", "--csv"),
    typed("clone e 1 --set lr", "--set lr", "must be KEY=VALUE"),
    typed("workers e 0", "workers='0'", "at least 1", "pause"),
    typed("pause e", "e is not running"),
    typed("verify ee", "'ee'", "no such experiment"),
    typed("data show empty.py", "empty.py", "is a file, not the folder of a data set", "hopfleet prepare"),
    typed("partition data.csv out", "data.csv", "no such file", "Parquet"),
    typed("partition empty.py out", "empty.py", "cannot be read as a Parquet file", "pandas.read_csv"),
]
