"""The surroundings of the user's code: modules that a script has changed, loggers, filters, and reported records."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hopfleet.worker.logs import copied
from hopfleet.worker.records import MOST, MOST_OF_ONE, RecordReporter
from hopfleet.worker.surroundings.changed_modules import changes
from hopfleet.worker.surroundings.script import Output, Surroundings

TASK = """
import deeper_settings
from own_settings import SIZE

class Task:
    pass
"""

OWN = """
import deeper_settings

SIZE: int = 1
RATE = 0.5
NAME = "plain"
SHAPE = (1, 2)
NOTHING = None
TWICE = 1
TWICE = 2
FILLED = {}
calls = 0
computed = len("abc")

def function():
    global calls
    calls += 1
    FILLED["x"] = object()

def wrapped():
    pass

wrapped = [wrapped]

def public():
    pass

public.__module__ = "of_another_name"

class Kind:
    pass
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    sources = {"own_task": TASK, "own_settings": OWN, "deeper_settings": "DEPTH = 1\n"}
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield {name: importlib.import_module(name) for name in sources}
    for name in sources:
        del sys.modules[name]


def test_untouched_modules_have_no_changes(modules: dict[str, Any]) -> None:
    own = modules["own_settings"]
    own.function()  # the module's own code changes its state
    assert changes(modules["own_task"].Task()) == ({}, [])


def test_values_that_a_script_has_set(modules: dict[str, Any]) -> None:
    own = modules["own_settings"]
    modules["own_task"].own = own  # ``from own_settings import SIZE`` alone does not refer to the module
    own.SIZE, own.RATE, own.NAME, own.SHAPE, own.NOTHING = 3, 1, "other", (1, [2]), {"a": None}
    own.TWICE, own.computed = 5, 7  # the source does not say what these are in another process
    own.function, own.Kind = len, object()
    own.added, own.added_object, own._private = "new", object(), 1  # the source has none of them
    modules["deeper_settings"].DEPTH = True
    found = changes(modules["own_task"].Task())
    assert found.values == {
        "own_settings": {
            "SIZE": 3,
            "RATE": 1,
            "NAME": "other",
            "SHAPE": (1, [2]),
            "NOTHING": {"a": None},
            "added": "new",
        },
        "deeper_settings": {"DEPTH": True},
    }
    assert sorted(found.stuck) == ["own_settings.Kind", "own_settings.function"]


def test_values_that_a_script_has_set_in_an_installed_package(
    modules: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site-packages" / "images.py"
    file.parent.mkdir()
    file.write_text("TRUNCATED = False\nLIMIT = 2 * 3\ndef load(): pass\n")
    spec = importlib.util.spec_from_file_location("images", file)
    assert spec is not None and spec.loader is not None
    images: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(images)
    monkeypatch.setitem(sys.modules, "images", images)
    modules["own_task"].images = images
    assert changes(modules["own_task"].Task()) == ({}, [])
    images.TRUNCATED, images.LIMIT, images.load, images.added = True, 7, len, 1
    assert changes(modules["own_task"].Task()) == ({"images": {"TRUNCATED": True}}, [])


def test_names_that_a_module_gets_from_another_are_left_alone(modules: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "deeper_settings.py").write_text("DEPTH = 1\nfrom own_settings import *\n")
    modules["deeper_settings"].DEPTH = 2
    assert changes(modules["own_task"].Task()) == ({}, [])


@contextlib.contextmanager
def untouched() -> Iterator[logging.Logger]:
    """The root logger, which has no handlers of others meanwhile and is left as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    with warnings.catch_warnings():
        yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("own").setLevel(logging.NOTSET)
    logging.captureWarnings(False)


def test_loggers_and_filters_travel(modules: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with untouched() as root:
        logging.basicConfig(level=logging.INFO, format="{name} / {message}", style="{")
        logging.getLogger("own").setLevel(logging.DEBUG)
        warnings.simplefilter("error", ResourceWarning)
        warnings.filterwarnings("ignore", "no use", module="own")
        filters = warnings.filters[:]
        there = Surroundings.of(modules["own_task"].Task())

        root.handlers.clear()
        root.setLevel(logging.WARNING)
        logging.getLogger("own").setLevel(logging.NOTSET)
        warnings.resetwarnings()
        there.adopt()
        logging.getLogger("own").debug("hello")
        logging.getLogger("other").debug("not wanted")
        assert capsys.readouterr().err == "own / hello\n"
        assert [(one[0], one[2], one[4]) for one in warnings.filters] == [(one[0], one[2], one[4]) for one in filters]
        assert warnings.filters[0][1].match("no use at all") and warnings.filters[0][3].match("own")


def test_loggers_and_filters_of_pytorch_do_not_import_it(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of a task without PyTorch would otherwise import it each, if the script has."""
    with untouched() as root:
        of_torch = [name for name in root.manager.loggerDict if name.startswith(("torch", "strobelight"))]
        loggers = {name: root.manager.loggerDict[name] for name in of_torch}  # pytest has its handlers on others
        assert any(getattr(logger, "handlers", ()) for logger in loggers.values())
        monkeypatch.setattr(root.manager, "loggerDict", loggers)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)
        there = Surroundings.of(modules["own_task"].Task())
    assert there.output == Output(), "PyTorch formats its own records only"
    found = pickle.dumps(there)
    code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read()).adopt(); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], input=found, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_without_a_handler_warnings_are_written_as_usual(capsys: pytest.CaptureFixture[str]) -> None:
    with untouched():
        Surroundings().adopt()
        logging.getLogger("own").warning("careful")
        logging.getLogger("own").info("not wanted")
        assert capsys.readouterr().err == "careful\n"


def test_a_module_that_workers_cannot_import_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with untouched():
        Surroundings(modules={"not_here": {"SIZE": 3}}).adopt()
        assert "not_here" in capsys.readouterr().err


def test_each_message_is_reported_once_and_few_of_one_line() -> None:
    with untouched() as root:
        reports: list[tuple[str, str]] = []
        reporter = RecordReporter(lambda trial, text: reports.append((trial, text)))
        root.addHandler(reporter)
        logger = logging.getLogger("own")
        logger.info("not wanted")
        for _ in range(2):
            logger.warning("twice")
        for number in range(100):
            logger.error("again %d", number)
        assert len(reports) == 1 + MOST_OF_ONE
        assert reports[0] == ("", "WARNING own: twice")
        assert reports[-1][1] == "ERROR own: again 4; further ones are in the logs of trials"
        for line in range(100):
            record = logging.LogRecord("own", logging.WARNING, "file", line, "line %d: " + 1000 * "x", (line,), None)
            root.handle(record)
        assert len(reports) == MOST
        assert max(len(text) for _, text in reports) < 600


def test_records_of_inline_workers_are_in_the_log_and_where_the_script_wants_them(tmp_path: Path) -> None:
    with untouched() as root:
        shown = io.StringIO()
        logging.basicConfig(level=logging.INFO, format="%(name)s / %(message)s", stream=shown)
        with copied(tmp_path / "t1.log", tmp_path / "t2.log") as turn:
            logging.getLogger("own").info("hello")
            turn(1)
            logging.getLogger("own").warning("careful")
        logging.getLogger("own").info("later")
        assert len(root.handlers) == 1
    assert (tmp_path / "t1.log").read_text() == "own / hello\n"
    assert (tmp_path / "t2.log").read_text() == "own / careful\n"
    assert shown.getvalue() == "own / hello\nown / careful\nown / later\n"
    with untouched(), copied(tmp_path / "t3.log"):
        logging.getLogger("own").warning("without a handler")
    assert (tmp_path / "t3.log").read_text() == "without a handler\n"
