"""Mistakes on the command line."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.mistakes import CommandFailed, Mistake, command, fit

MISTAKES = [
    Mistake(
        "show of an experiment that does not exist",
        lambda: (fit(), command("show", "ee")),
        CommandFailed,
        ("ee", "no such experiment", "there are: e"),
    ),
    Mistake(
        "show of a trial that does not exist",
        lambda: (fit(), command("show", "e", "--trial", "7")),
        CommandFailed,
        ("'t0007'", "no such trial", "t0001"),
    ),
    Mistake(
        "plot of a kind that does not exist",
        lambda: (fit(), command("plot", "e", "--kind", "curve")),
        CommandFailed,
        ("kind='curve'", "did you mean 'curves'?"),
    ),
    Mistake(
        "run of a file that does not exist", lambda: command("run", "no.py"), CommandFailed, ("no.py", "no such file")
    ),
    Mistake(
        "run of a file without an experiment",
        lambda: (Path("empty.py").write_text(""), command("run", "empty.py")),
        CommandFailed,
        ("empty.py", "has no experiment", "experiment = hop.Experiment(...)"),
    ),
    Mistake(
        "run of a file with an error",
        lambda: (Path("wrong.py").write_text("x = 1\ny = z\n"), command("run", "wrong.py")),
        CommandFailed,
        ("wrong.py, line 2", "NameError", "'z'"),
    ),
    Mistake(
        "JSON of a run without a preview",
        lambda: (Path("empty.py").write_text(""), command("run", "empty.py", "--json")),
        CommandFailed,
        ("--json", "needs --preview"),
    ),
    Mistake("a command that does not exist", lambda: command("shwo"), CommandFailed, ("shwo", "--help")),
    Mistake("an option that does not exist", lambda: command("show", "e", "--al"), CommandFailed, ("--al", "--help")),
    Mistake(
        "export without a file", lambda: (fit(), command("export", "e")), CommandFailed, ("no file given", "--csv")
    ),
    Mistake(
        "a setting without a value",
        lambda: (fit(), command("clone", "e", "1", "--set", "lr")),
        CommandFailed,
        ("--set lr", "must be KEY=VALUE"),
    ),
]
