"""What a trial's code may change in its process: for each, how a test changes it and what another trial would see.

``Sensitive`` is a task whose losses depend on all of it, so that any leak from one trial to another changes bits.
"""

from __future__ import annotations

import argparse
import builtins
import decimal
import gc
import locale
import logging
import os
import random
import signal
import sys
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

import hopfleet as hop

STEP = 0
"""A global that trials change."""


OWN_HANDLER = logging.NullHandler()
"""A handler that trials add."""


def helper() -> int:
    """A function that trials replace."""
    return 1


class Holder:
    """A class whose attribute trials change."""

    size = 1


class Change(NamedTuple):
    """A change that a trial makes, and what others would see; ``row`` is the setting of the table that covers it."""

    row: str
    make: Callable[[], object]
    seen: Callable[[], object]


def _set(owner: Any, name: str, value: Any) -> Callable[[], object]:
    return lambda: setattr(owner, name, value)


def _close_output() -> None:
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stdout.close()


def _umask() -> int:
    found = os.umask(0o22)
    os.umask(found)
    return found


def _here() -> Any:
    return sys.modules[__name__]


def _add_handler() -> None:
    logging.getLogger().addHandler(OWN_HANDLER)


SETTINGS: dict[str, Any] = {"dropout": 0.1, "model": {"depth": 2}, "layers": [8, 8], "activation": torch.nn.ReLU}
MODEL = SETTINGS["model"]
DEFAULTS: defaultdict[str, float] = defaultdict(lambda: 0.5)
ARGUMENTS = argparse.Namespace(rate=0.1, dtype=torch.float32, sizes=(1, 2))
"""Settings at module level that trials change in place."""


class Counting:
    """Counts, as a meter of a script does."""

    def __init__(self) -> None:
        self.step = 0


OBJECT = Counting()

KEPT = SimpleNamespace(mode=object())
"""Keeps a mode that a trial enters and does not leave: it would be left with the last reference."""


def _enter_inference_mode() -> None:
    KEPT.mode = torch.inference_mode()
    KEPT.mode.__enter__()


TORCH, CODE, PATCHES = "settings of torch", "names in your code", "patches of torch"

CHANGES: Mapping[str, Change] = {
    "stdin": Change("sys.stdin", _set(sys, "stdin", None), lambda: sys.stdin is None),
    "stdout": Change("sys.stdout", _set(sys, "stdout", None), lambda: sys.stdout is None),
    "closed stdout": Change("sys.stdout", _close_output, lambda: sys.stdout is not None and sys.stdout.closed),
    "stderr": Change("sys.stderr", _set(sys, "stderr", None), lambda: sys.stderr is None),
    "folder": Change("the working directory", lambda: os.chdir("/"), os.getcwd),
    "variable": Change(
        "environment variables", lambda: os.environ.update(OWN_VARIABLE="1"), lambda: os.environ.get("OWN_VARIABLE")
    ),
    "no variable": Change("environment variables", lambda: os.environ.pop("PATH", 0), lambda: "PATH" in os.environ),
    "umask": Change("the umask", lambda: os.umask(0o123), _umask),
    "locale": Change("the locale", lambda: locale.setlocale(locale.LC_ALL, "C"), lambda: locale.setlocale(0)),
    "path": Change("sys.path", lambda: sys.path.insert(0, "/own"), lambda: "/own" in sys.path),
    "warnings": Change(
        "the warnings filters", lambda: warnings.simplefilter("once", UserWarning), lambda: warnings.filters[0][:1]
    ),
    "signal": Change(
        "signal handlers",
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
        lambda: signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN,
    ),
    "logging": Change("loggers", lambda: logging.getLogger().setLevel(1), lambda: logging.getLogger().level == 1),
    "handler": Change("loggers", _add_handler, lambda: OWN_HANDLER in logging.getLogger().handlers),
    "logging off": Change("loggers", lambda: logging.disable(49), lambda: logging.getLogger().manager.disable),
    "decimal": Change(
        "the decimal context", lambda: decimal.setcontext(decimal.Context(prec=7)), lambda: decimal.getcontext().prec
    ),
    "errors": Change("NumPy's handling of errors", lambda: np.seterr(all="raise"), lambda: sorted(np.geterr().items())),
    "recursion": Change("the recursion limit", lambda: sys.setrecursionlimit(5432), sys.getrecursionlimit),
    "collector": Change("the garbage collector", gc.disable, gc.isenabled),
    "excepthook": Change("hooks of the interpreter", _set(sys, "excepthook", print), lambda: sys.excepthook is print),
    "showwarning": Change(
        "hooks of warnings", lambda: logging.captureWarnings(True), lambda: warnings.showwarning.__module__
    ),
    "print": Change("patches of Python and NumPy", _set(builtins, "print", repr), lambda: print is repr),
    "numpy": Change("patches of Python and NumPy", _set(np, "sin", np.cos), lambda: np.sin is np.cos),
    "default dtype": Change(TORCH, lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "matmul": Change(TORCH, lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "tf32": Change(TORCH, _set(torch.backends.cudnn, "allow_tf32", False), lambda: torch.backends.cudnn.allow_tf32),
    "benchmark": Change(TORCH, _set(torch.backends.cudnn, "benchmark", True), lambda: torch.backends.cudnn.benchmark),
    "deterministic": Change(
        TORCH, lambda: torch.use_deterministic_algorithms(True, warn_only=True), torch.get_deterministic_debug_mode
    ),
    "anomaly": Change(TORCH, lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "device": Change("the default device of torch", lambda: torch.set_default_device("meta"), torch.get_default_device),
    "grad": Change("grad mode", lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "inference": Change("inference mode", _enter_inference_mode, torch.is_inference_mode_enabled),
    "autocast": Change(
        "autocast", lambda: torch.set_autocast_enabled("cpu", True), lambda: torch.is_autocast_enabled("cpu")
    ),
    "relu": Change(PATCHES, _set(torch, "relu", torch.tanh), lambda: torch.relu is torch.tanh),
    "linear": Change(
        PATCHES,
        _set(torch.nn.functional, "linear", torch.nn.functional.bilinear),
        lambda: torch.nn.functional.linear is torch.nn.functional.bilinear,
    ),
    "global": Change(CODE, lambda: _set(_here(), "STEP", STEP + 1)(), lambda: STEP),
    "new global": Change(CODE, lambda: _set(_here(), "ADDED", 1)(), lambda: hasattr(_here(), "ADDED")),
    "function": Change(CODE, lambda: _set(_here(), "helper", len)(), lambda: helper.__name__),
    "class": Change(CODE, lambda: _set(Holder, "size", Holder.size + 1)(), lambda: Holder.size),
    "dict": Change(CODE, lambda: SETTINGS.update(dropout=0.9), lambda: SETTINGS["dropout"]),
    "key of a dict": Change(CODE, lambda: SETTINGS.setdefault("width", 3), lambda: "width" in SETTINGS),
    "dict in a dict": Change(CODE, lambda: MODEL.update(depth=3), lambda: SETTINGS["model"]["depth"]),
    "list in a dict": Change(CODE, lambda: SETTINGS["layers"].append(4), lambda: len(SETTINGS["layers"])),
    "defaults": Change(CODE, lambda: DEFAULTS["rate"], lambda: len(DEFAULTS)),
    "namespace": Change(CODE, _set(ARGUMENTS, "rate", 0.5), lambda: ARGUMENTS.rate),
    "object": Change(CODE, _set(OBJECT, "step", 3), lambda: OBJECT.step),
    "class of the task": Change(CODE, lambda: _set(Sensitive, "scale", 2.0)(), lambda: Sensitive.scale),
    "random streams": Change("", lambda: (random.seed(1), np.random.seed(1), torch.manual_seed(1)), lambda: 0),
    "threads": Change("the number of threads", lambda: torch.set_num_threads(5), torch.get_num_threads),
}
"""All changes, by a short name."""


def seen() -> list[object]:
    """Return what a trial sees of all settings."""
    return [change.seen() for change in CHANGES.values()]


class Sensitive(hop.TorchTask):
    """A task whose losses depend on all settings. ``config["change"]`` is made in the hook ``config["hook"]``."""

    scale = 1.0

    def _change(self, hook: str) -> float:
        """Make the change of the trial, if it is made in this hook; return a factor made of what the trial sees."""
        if self.config.get("hook") == hook:
            CHANGES[self.config["change"]].make()
        drawn = random.random() + float(np.random.rand()) if self.config["draws"] else 0
        return 1 + zlib.crc32(repr([drawn, seen()]).encode()) / 2**34

    def build(self, config: Mapping[str, Any]) -> Any:
        self.factor = self._change("build")
        with torch.device("cpu"), torch.inference_mode(False), torch.enable_grad():
            model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.2), torch.nn.Linear(2, 1))
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        factor = self.factor * self._change("loss")
        with (
            torch.inference_mode(False),
            torch.device("cpu"),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
        ):
            kind = next(model.parameters()).dtype
            out = model[2](model[1](model[0](batch["x"].to(kind)))).squeeze(1)
            return ((out - batch["y"].to(kind)) ** 2).mean() * factor

    def metrics(self, model: Any, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"factor": self._change("metrics")}
