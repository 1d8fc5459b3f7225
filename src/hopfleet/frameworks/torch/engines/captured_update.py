"""Updates that are captured alone: where the rest of a step cannot be captured, its update often can.

The forward and the backward pass are taken eagerly and make new gradients each time, so these have the bits that they
have without captures. They are copied to where the capture reads them, and the update is replayed. An update that the
capture was not made for, because other weights have gradients or a setting was changed, is made eagerly.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch

from hopfleet.errors import describe
from hopfleet.frameworks.torch import _compat, randomness
from hopfleet.frameworks.torch.capturable import upload
from hopfleet.frameworks.torch.engines.capture import (
    backend_of,
    captured_graph,
    check_update,
    copies,
    held_updates,
    kind_of,
    restore,
    settings_of,
    update_footing,
)
from hopfleet.frameworks.torch.engines.capture_backend import Graph, GraphCache
from hopfleet.frameworks.torch.engines.comparison import CHECKS, UNEQUAL, same_bits
from hopfleet.frameworks.torch.engines.conditions import Refused
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps
from hopfleet.frameworks.torch.trial import Metrics

ALIGNED = 64
"""Bytes. The order of the sum over a gradient may depend on whether its address is a multiple of some number."""


@dataclass(slots=True)
class UpdateCapture:
    """An update, ready to be replayed. Each replay leaves its outcome in ``values``."""

    graph: Graph
    generator: torch.Generator
    values: dict[str, torch.Tensor]
    #: The weights that have gradients, and the tensors that the update reads these from.
    weights: Sequence[torch.Tensor]
    gradients: list[torch.Tensor]
    #: The tensors and settings that the capture was made for; see ``update_footing``.
    footing: Hashable
    #: The form of the gradients, and what the user's code may change from batch to batch; see ``_ground``.
    form: Hashable
    ground: object

    def replay(self, gradients: Sequence[torch.Tensor]) -> None:
        """Make an update with some gradients. The weights have them afterwards, as the update leaves them."""
        _compat.foreach_copy_(self.gradients, list(gradients))
        _attach(self.weights, self.gradients)
        self.graph.replay()


class UpdateAlone:
    """The updates of one trial in one unit: a capture of an earlier unit is reused, or a new one is made.

    Call it in place of an update: it returns the values of the update, or None if the caller must make the update
    eagerly. The optimizer must have made an update before. ``tell`` is called once with the outcome: whether updates
    are captured.
    """

    def __init__(self, session: TorchSession, tell: Callable[[bool], None]) -> None:
        self._session = session
        self._tell: Callable[[bool], None] | None = tell
        self._parameters = list(session.model.parameters())
        self._capture: UpdateCapture | None = None

    def __call__(self, steps: Steps) -> Metrics | None:
        session, form = self._session, _form(self._parameters)
        if self._tell is not None:
            self._capture = self._found(steps, form)
            self.end()
        capture = self._capture
        if capture is None or form != capture.form or _ground(session, self._parameters) != capture.ground:
            return None
        upload(held_updates(session))
        capture.replay(_gradients(capture.weights))
        return {name: value.clone() for name, value in capture.values.items()}

    def end(self) -> None:
        """Tell the outcome, unless it was told before."""
        if self._tell is not None:
            self._tell(self._capture is not None)
            self._tell = None

    def _found(self, steps: Steps, form: Hashable) -> UpdateCapture | None:
        """Return the capture of an earlier unit if it is still valid, or else a new one; None if that is impossible."""
        session, verdicts = self._session, self._session.cache.part(GraphCache).verdicts
        kept: UpdateCapture | None = session.kept.get(UpdateCapture)
        if kept is not None and (kept.form, kept.footing) == (form, update_footing(session)):
            return kept
        kind = UpdateCapture, kind_of(session), form
        if not verdicts.get(kind):
            try:
                session.kept[UpdateCapture] = capture = self._captured(steps, form, compares=kind not in verdicts)
                verdicts[kind] = ""
                return capture
            except Refused as reason:
                verdicts[kind] = str(reason)
        session.kept.pop(UpdateCapture, None)
        return None

    def _captured(self, steps: Steps, form: Hashable, *, compares: bool) -> UpdateCapture:
        """Capture the update without executing it. Raises Refused if that is impossible."""
        session = self._session
        _check(session, self._parameters)
        upload(held_updates(session))  # nothing is uploaded inside a capture
        weights = [weight for weight in self._parameters if weight.grad is not None]
        backend, values = backend_of(session), dict[str, torch.Tensor]()
        try:
            with _undone(session, weights):
                random = randomness.current(session.device)
                ground = _ground(session, self._parameters)
                before = update_footing(session)
                gradients = [torch.empty_like(gradient) for gradient in _gradients(weights)]
                fresh, generator = _gradients(weights), backend.generator(session.device)
                _attach(weights, gradients)
                if _form(self._parameters) != form:
                    raise Refused("gradients have a layout of their own")
                graph = captured_graph(session, generator, steps.updated, values, None)
                if update_footing(session) != before:
                    raise Refused("the update makes tensors for later ones")
                capture = UpdateCapture(graph, generator, values, weights, gradients, before, form, ground)
                if compares:
                    _compare(session, capture, fresh, steps)
                if randomness.changed(random, randomness.current(session.device)):
                    raise Refused("the update draws random numbers")
            return capture
        except Refused:
            raise
        except Exception as error:
            raise Refused(describe(error)) from error


def _check(session: TorchSession, parameters: Sequence[torch.Tensor]) -> None:
    """Raise Refused if an update cannot be captured alone, or gains nothing by that."""
    if not session.options.capture:
        raise Refused("the task sets capture = False")
    if session.large:
        raise Refused("the model keeps the device busy by itself, and its gradients would take memory twice")
    check_update(session)
    if not all(gradient.layout is torch.strided for gradient in _gradients(parameters)):
        raise Refused("gradients are sparse")


def _compare(session: TorchSession, capture: UpdateCapture, fresh: list[torch.Tensor], steps: Steps) -> None:
    """Raise Refused unless replays have the bits of eager updates. The caller restores the state."""
    before, draws = copies(session), capture.generator.get_state()
    given = [gradient.clone() for gradient in fresh]

    def outcome(update: Callable[[], Metrics]) -> list[torch.Tensor]:
        values = [value.clone().reshape(1) for _ in range(CHECKS) for value in update().values()]
        left = [gradient.clone() for gradient in _gradients(capture.weights)]
        found = [*copies(session), *left, *values]
        restore(session, before)
        return found

    def replayed() -> Metrics:
        capture.replay(given)
        return capture.values

    def eager() -> Metrics:
        # Eager updates read gradients where the backward pass has put them.
        _compat.foreach_copy_(fresh, given)
        _attach(capture.weights, fresh)
        return steps.updated()

    pairs = list(zip(outcome(replayed), outcome(eager), strict=True))
    if not all(same_bits(one, other) for one, other in pairs):
        raise Refused(UNEQUAL)
    if not torch.equal(draws, capture.generator.get_state()):
        raise Refused("the update draws random numbers")


@contextlib.contextmanager
def _undone(session: TorchSession, weights: Sequence[torch.Tensor]) -> Iterator[None]:
    """Undo what happens inside to the state of a session, to its gradients and to random streams."""
    gradients, random, state = _gradients(weights), randomness.current(session.device), copies(session)
    values = [gradient.clone() for gradient in gradients]
    entries = [{key: copy.copy(entry) for key, entry in one.state.items()} for one in session.optimizers]
    try:
        yield
    finally:
        for optimizer, known in zip(session.optimizers, entries, strict=True):
            optimizer.state.clear()
            optimizer.state.update(known)
        restore(session, state)
        randomness.put(random, session.device)
        _compat.foreach_copy_(gradients, values)
        _attach(weights, gradients)


def _gradients(weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def _attach(weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient


def _form(parameters: Sequence[torch.Tensor]) -> Hashable:
    """Return which parameters have gradients, and how these lie in memory."""
    return tuple(
        (number, gradient.dtype, gradient.stride(), gradient.data_ptr() % ALIGNED)
        if gradient.layout is torch.strided
        else (number, gradient.layout)
        for number, gradient in ((number, weight.grad) for number, weight in enumerate(parameters))
        if gradient is not None
    )


def _ground(session: TorchSession, parameters: Sequence[torch.Tensor]) -> object:
    """Return what a capture relies on as far as the user's code may change it in a forward pass."""
    return [tensor.data_ptr() for tensor in (*parameters, *session.average)], settings_of(session)
