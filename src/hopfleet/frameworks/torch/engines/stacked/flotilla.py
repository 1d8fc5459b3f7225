"""A flotilla as one program: members of one architecture, with their weights stacked, take every step at once.

One batched operation replaces as many small ones, so the overhead of an operation is paid once for all members. The
sums inside a batched product are taken in another order than alone, so the last bits differ: this engine is for
``fuse="fast"``, and the deviation of the first step is measured and logged. On CUDA the step of a stack is captured and
replayed, as in ``cuda_graphs``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from functools import partial

import torch

from hopfleet.errors import describe
from hopfleet.frameworks.base import Batch, Batches, Result
from hopfleet.frameworks.torch import _compat, randomness
from hopfleet.frameworks.torch.engines.capture import SIZES, Capture, backend_of, batch_key
from hopfleet.frameworks.torch.engines.capture_backend import OnLane
from hopfleet.frameworks.torch.engines.common import Differs, words
from hopfleet.frameworks.torch.engines.cuda_graphs import CudaGraphs
from hopfleet.frameworks.torch.engines.interleaved import Interleaved, Member
from hopfleet.frameworks.torch.engines.stacked.attempts import Attempts, may_stack, stacks_at_once, takes_turns
from hopfleet.frameworks.torch.engines.stacked.cache import StackCache
from hopfleet.frameworks.torch.engines.stacked.measured import Slower, captured_steps, faster_stack, own_tensors
from hopfleet.frameworks.torch.engines.stacked.models import Unstackable, family, form, kind_of
from hopfleet.frameworks.torch.engines.stacked.onednn import using_onednn
from hopfleet.frameworks.torch.engines.stacked.readying import begin
from hopfleet.frameworks.torch.engines.stacked.stack import Stack, StackCapture
from hopfleet.frameworks.torch.engines.stacked.updates import Table
from hopfleet.frameworks.torch.engines.stacked.widths import Alike, together
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.step_log import REASON
from hopfleet.frameworks.torch.steps import rows_of

FEW = 4
"""Members of one kind that are stacked at least where steps are captured: fewer run as fast side by side."""


class Stacked(Interleaved):
    """Members of one kind as one program, and the others one after another."""

    #: Members of one kind that are stacked at least.
    least = 2

    def __init__(self, sessions: Sequence[TorchSession]) -> None:
        super().__init__(sessions)
        self._stack_cache = sessions[0].cache.part(StackCache)
        self._backend = backend_of(sessions[0])

    def _run(self, members: Sequence[Member], batches: Batches) -> Generator[None]:
        self._stacks: list[tuple[Stack, list[Member]]] | None = None
        self._losses: list[list[Table]] = []
        self._counts: list[int] = []
        yield from super()._run(members, batches)
        stacks: list[tuple[Stack, list[Member]]] = self._stacks or []
        for (stack, stacked), losses in zip(stacks, self._losses, strict=True):
            stack.settle()
            table = torch.stack(losses).cpu()
            for row, member in enumerate(stacked):
                member.steps.note({"loss": table[:, row]}, *self._counts)

    def evaluate(self, batches: Batches, *, seed: int) -> list[Result]:
        captures = self._backend.captures_on(self.sessions[0].device)
        others = CudaGraphs(self.sessions, loose=True) if captures else Interleaved(self.sessions)
        others.turn, others.given_up, others.repeats = self.turn, self.given_up, self.repeats
        # Convolutions that train side by side on CUDA are compiled, if at all, one by one.
        plain = [
            one for one in self.sessions if not (captures and Stack not in one.kept and _compat.convolves(one.model))
        ]
        with using_onednn(all(known.onednn for known in self._stack_cache.tried.values())), _uncompiled(plain):
            results = others.evaluate(batches, seed=seed)
        self.shares = others.shares
        return results

    def _launch(self, members: list[Member], batch: Batch) -> list[Member]:
        if self._stacks is None:
            self._stacks = list(self._stacked(members, batch))
            self._losses = [[] for _ in self._stacks]
            # Large models use the same memory, and convolutions on several streams have been seen to hang.
            sessions = [stack.sessions[0] for stack, _ in self._stacks]
            self._abreast_stacks = len(sessions) > 1 and not any(
                session.large or _compat.convolves(session.model) for session in sessions
            )
        if not self._stacks:
            return super()._launch(members, batch)
        launched: set[Member] = set()
        self._counts.append(rows_of(batch))
        device = self.sessions[0].device
        quick = randomness.QUICK & randomness.names(device)
        untouched = randomness.current(device, quick)
        with self._lanes() as on_lane:
            for number, ((stack, stacked), losses) in enumerate(zip(self._stacks, self._losses, strict=True)):
                launched.update(stacked)
                first = stacked[0]
                by_batch = first.session.hooks.lr_step == "batch"
                randomness.put(first.random, device, quick)
                began = time.perf_counter()
                with on_lane(number), self._timed(stacked):
                    losses.append(self._stepped(stack, first, batch))
                spent = (time.perf_counter() - began) / len(stacked)
                first.random |= randomness.current(device, quick)
                for member in stacked:
                    member.seconds += spent
                    if by_batch and member.session.schedulers:
                        member.steps.step_schedule()
                if by_batch:
                    with on_lane(number):
                        stack.read_settings()
        randomness.put(untouched, device, quick)
        rest = [member for member in members if member not in launched]
        return super()._launch(rest, batch) if rest else []

    def _lanes(self) -> contextlib.AbstractContextManager[OnLane]:
        """Let stacks step one after another."""
        return contextlib.nullcontext(lambda number: contextlib.nullcontext())

    def _stacked(self, members: list[Member], batch: Batch) -> Iterator[tuple[Stack, list[Member]]]:
        whole = _kept([member.session for member in members])
        kinds = [members] if whole else self._kinds(members)
        while kinds:
            alike = kinds.pop(0)
            try:
                stack = self._made(alike, batch)
            except Differs as reason:
                self._stack_cache.split_by(reason.keys)
                kinds = [*self._kinds(alike), *kinds]
                continue
            except Exception as error:
                self._refuse(alike, error)
                continue
            rows = {session: row for row, session in enumerate(stack.sessions if stack else ())}
            stacked = [member for member in alike if member.session in rows]
            for member in stacked:
                member.draws = frozenset()
                member.session.kept[Stack] = stack
                _compat.count_as_stepped(member.session.optimizers[0])
            if stack is not None:
                yield stack, sorted(stacked, key=lambda member: rows[member.session])

    def _made(self, members: list[Member], batch: Batch) -> Stack | None:
        """Return a stack of members of one kind; None if they train without one."""
        return self._built([member.session for member in members], batch)

    def _built(self, sessions: list[TorchSession], batch: Batch) -> Stack | None:
        """Return a stack of the members that compute the same; None if these are too few."""
        with own_tensors(sessions) as let_go:
            stack = _kept(sessions) or Stack(sessions)
            stack.read_settings()
            unlike = stack.try_out(batch)
            if any(session.logs for session in sessions):  # it was not seen before the loss was called
                raise Unstackable(REASON)
            if not unlike:
                let_go()
                return stack
        self._stack_cache.tell(
            f"{len(unlike)} trials train beside the stack: their loss depends on more than weights, batch and "
            "configuration, such as a number that build() puts into an object of the model"
        )
        for session in unlike:
            session.kept[Unstackable] = True
        rest = [session for session in sessions if session not in unlike]
        return self._built(rest, batch) if len(rest) >= self.least else None

    def _refuse(self, members: Sequence[Member], error: Exception) -> None:
        """Say why members of a kind are not stacked. Others of the kind are not tried, unless memory was short."""
        self._stack_cache.tell(f"trials train in turn: {_reason(error)}")
        if not isinstance(error, torch.OutOfMemoryError):
            self._stack_cache.refused |= {self._group(member.session) for member in members}

    def _group(self, session: TorchSession) -> Hashable:
        """Return what sessions have in common that are stacked, or not, for the same reasons."""
        return form(session), words(session.config, self._stack_cache.splitting)

    def _kinds(self, members: list[Member]) -> list[list[Member]]:
        """Group the members that are stacked with each other."""
        return [alike for alike in self._alike(members) if len(alike) >= self.least]

    def _alike(self, members: list[Member]) -> list[list[Member]]:
        """Group the members that can be stacked with each other."""
        kinds: dict[Hashable, list[Member]] = {}
        for member in members:
            if Unstackable in member.session.kept:
                continue
            try:
                if self._group(member.session) in self._stack_cache.refused:
                    continue
                kind = kind_of(member.session), words(member.session.config, self._stack_cache.splitting)
                kinds.setdefault(kind, []).append(member)
            except Unstackable as reason:
                self._stack_cache.tell(f"trials train in turn: {reason}")
        return list(kinds.values())

    def _stepped(self, stack: Stack, first: Member, batch: Batch) -> Table:
        """Make a step of a stack; replay it if it was captured."""
        key = batch_key(batch, stack.weights.device) if stack.sizes else None
        if key in stack.captures:
            return stack.captures[key].step(batch)
        losses = stack.step(batch)
        # The last batch of a partition is often smaller: its capture pays only if the batch comes again.
        if len(stack.captures) < min(stack.sizes, SIZES if stack.lasting else 1):
            try:
                stack.captures[key] = StackCapture(stack, batch, first.random[self._backend.random_stream])
            except Exception as error:
                stack.sizes = len(stack.captures)
                self._stack_cache.tell(f"steps of the stack are not captured: {describe(error)}")
        return losses


class StackedGraphs(Stacked, CudaGraphs):
    """Members of one kind as one captured program if that is faster, and others side by side as captured steps."""

    least = FEW

    def __init__(self, sessions: Sequence[TorchSession]) -> None:
        super().__init__(sessions)
        self.loose = True

    def _lanes(self) -> contextlib.AbstractContextManager[OnLane]:
        if not self._abreast_stacks:
            return super()._lanes()
        return self._cache.abreast(self.sessions[0].device, len(self._stacks or ()))

    def _alike(self, members: list[Member]) -> list[list[Member]]:
        members = [member for member in members if may_stack(member.session)]
        # Smaller members are padded where that takes less time than a stack of their own.
        families: dict[Hashable, list[list[Member]]] = {}
        for alike in super()._alike(members):
            session = alike[0].session
            same = family(session), session.counters["units"] == 0, words(session.config, self._stack_cache.splitting)
            families.setdefault(same if same[0] else id(alike), []).append(alike)
        found: list[list[Member]] = []
        for groups in families.values():
            shapes = [[tuple(weight.shape) for weight in alike[0].session.model.parameters()] for alike in groups]
            stacks = together([Alike(len(some), of) for some, of in zip(groups, shapes, strict=True)])
            found += [[member for number in numbers for member in groups[number]] for numbers in stacks]
        return found

    def _made(self, members: list[Member], batch: Batch) -> Stack | None:
        sessions = [member.session for member in members]
        first = sessions[0]
        if stacks_at_once(first) or _kept(sessions):
            return super()._made(members, batch)
        key = batch_key(batch, first.device)
        # Twice as many members may be faster as a stack where these are not.
        kind = frozenset(map(form, sessions)), len(members).bit_length(), key
        known = self._stack_cache.faster
        if kind in known:
            return super()._made(members, batch) if known[kind] else None
        captures = {} if first.options.compile else captured_steps(members, key)
        if not captures:
            in_turn = all(map(takes_turns, sessions)) and not _compat.convolves(first.model)
            return super()._made(members, batch) if in_turn else None
        if not first.cache.part(Attempts).pay(first) or begin(first):
            return None  # kernels are compiled meanwhile
        return self._faster(captures, batch, kind)

    def _faster(self, captures: Mapping[Member, Capture], batch: Batch, kind: Hashable) -> Stack | None:
        """Return a stack of members whose steps are captured if its steps take less time, and remember whether."""
        members, what = list(captures), f"{len(captures)} trials"
        known, tell = self._stack_cache.faster, self._stack_cache.tell
        attempts, began = self.sessions[0].cache.part(Attempts), time.monotonic()
        stack: Stack | None = None
        try:
            stack, gain = faster_stack(captures, batch, self.first_lane, partial(super()._made, members, batch))
        except Differs:
            raise
        except Slower as reason:
            known[kind] = False
            tell(f"{what} train side by side: {reason}")
        except Exception as error:
            known[kind] = False
            tell(f"{what} train side by side: {_reason(error)}")
        finally:
            attempts.spent += time.monotonic() - began
        if stack is not None:
            known[kind] = attempts.succeeded = True
            tell(f"{what} are stacked: {gain}")
        self._backend.free_unused()
        return stack


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, Unstackable) else describe(error)


def _kept(sessions: Sequence[TorchSession]) -> Stack | None:
    """Return the stack that consists of exactly these sessions, in any order, if there is one."""
    stack: Stack | None = sessions[0].kept.get(Stack) if sessions else None
    return stack if stack is not None and set(stack.sessions) == set(sessions) and stack.whole else None


@contextlib.contextmanager
def _uncompiled(sessions: Sequence[TorchSession]) -> Iterator[None]:
    """Use models as they are: compiling each of them takes longer than it saves where all train as one."""
    kept = [session.callable for session in sessions]
    for session in sessions:
        session.callable = session.model
    try:
        yield
    finally:
        for session, compiled in zip(sessions, kept, strict=True):
            session.callable = compiled
