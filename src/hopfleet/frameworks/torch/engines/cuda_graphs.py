"""A flotilla on CUDA: the step of each member is captured once as a CUDA graph and then replayed, on several streams.

A small model keeps a GPU waiting for the processor, which launches one kernel after another. A captured step, or the
captured evaluation of a batch, is launched at once, and those of all members run side by side. Where the bits of
captured steps may differ from those of eager steps, a check finds out:

* the first steps of each kind of member are replayed, taken eagerly from the same state, and compared;
* of a step that cannot be captured as a whole, because its optimizer computes on the host, the gradients are captured;
* where these cannot be captured either, because the step reads values or draws random numbers on the host, the update
  is captured alone, and the rest of the step is taken as in ``interleaved``.

The log gives the reason once.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence

import torch

from hopfleet.frameworks.base import Batch, Batches, Result
from hopfleet.frameworks.torch import _compat, randomness
from hopfleet.frameworks.torch.capturable import upload
from hopfleet.frameworks.torch.engines import rates
from hopfleet.frameworks.torch.engines.capture import (
    SIZES,
    Capture,
    Joint,
    batch_key,
    copies,
    footing,
    held_updates,
    loose_kind_of,
    restore,
)
from hopfleet.frameworks.torch.engines.capture_backend import LANES, GraphCache, OnLane
from hopfleet.frameworks.torch.engines.captured_update import UpdateAlone
from hopfleet.frameworks.torch.engines.comparison import check_host, compared_capture, kind_of_step, start_over
from hopfleet.frameworks.torch.engines.conditions import CHANGED, ConditionsChanged, Refused
from hopfleet.frameworks.torch.engines.direct_update import DirectUpdates
from hopfleet.frameworks.torch.engines.host_state import HostState
from hopfleet.frameworks.torch.engines.interleaved import Interleaved, Member
from hopfleet.frameworks.torch.engines.joint_gradients import add_updates, alike, captured_together
from hopfleet.frameworks.torch.engines.rates import TIMED, Stopwatch
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps, rows_of
from hopfleet.support.logging import messages

ONLY_GRADIENTS = "only gradients are captured, and updates are made in turn"
ONLY_UPDATES = "only updates are captured, and the rest of each step is taken in turn"
NOT_CAPTURED = "steps are not captured, and trials train in turn"

STAY = 0.75
"""The part of the members whose gradients are computed as one that must still be there: those that left cost time."""

NOT_TIMED = contextlib.nullcontext()
"""A context for work that is not timed."""


class Replays:
    """Captures that are replayed side by side, on a few streams, and their values for each batch."""

    def __init__(
        self, captures: Mapping[Member, Capture], room: int, device: torch.device, cache: GraphCache, first: int
    ) -> None:
        self._backend = backend = cache.backend
        lanes = cache.streams(device)
        streams = (lanes[first % LANES :] + lanes[: first % LANES])[: len(captures)]
        self._inputs = list({id(capture.inputs): capture.inputs for capture in captures.values()}.values())
        #: Whether gradients are in memory that the next replay uses, so that each update comes before it.
        self._shares_memory = any(capture.place is not None for capture in captures.values())
        if self._shares_memory:
            streams = streams[:1]
            captures = dict(sorted(captures.items(), key=lambda item: item[1].place or 0))
        self._members = list(captures)
        #: Graphs that compute the gradients of several members, and those of the members that are here.
        self._joint: dict[Joint, list[Member]] = {}
        for member, capture in captures.items():
            if capture.joint is not None:
                self._joint.setdefault(capture.joint, []).append(member)
        self._ready = backend.event()
        found = list(captures.values())
        self._lanes = [
            (stream, backend.event(), list(captures.items())[number :: len(streams)])
            for number, stream in enumerate(streams)
        ]
        #: Values of one type lie side by side in a table with a row for each batch.
        self._values: dict[torch.dtype, list[torch.Tensor]] = {}
        self._columns: list[dict[str, tuple[torch.dtype, int]]] = []
        for capture in found:
            places: dict[str, tuple[torch.dtype, int]] = {}
            self._columns.append(places)
            for name, value in capture.values.items():
                of_type = self._values.setdefault(value.dtype, [])
                places[name] = (value.dtype, len(of_type))
                of_type.append(value)
        self._tables = {
            dtype: torch.empty(room, len(values), dtype=dtype, device=device) for dtype, values in self._values.items()
        }
        self._rows: list[int] = []

    def step(self, batch: Batch, clock: Stopwatch | None = None) -> None:
        """Replay each capture once, for a batch; with a ``clock``, measure how long that takes for each member."""
        for inputs in self._inputs:
            for name, value in inputs.items():
                value.copy_(batch[name], non_blocking=True)
        backend = self._backend
        here = backend.current_stream()
        for joint, members in self._joint.items():
            with NOT_TIMED if clock is None else clock.around(members):
                joint.graph.replay()
        self._ready.record(here)
        for stream, _, captures in self._lanes:
            stream.wait_event(self._ready)
            backend.set_stream(stream)
            for member, capture in captures:
                with NOT_TIMED if clock is None else clock.around([member]):
                    capture.launch(member)
                    if self._shares_memory:
                        capture.update(member)
        # The device computes the gradients of all members while the host makes updates that are not captured.
        for stream, done, captures in self._lanes:
            backend.set_stream(stream)
            for member, capture in captures:
                with NOT_TIMED if clock is None else clock.around([member]):
                    capture.update(member)
            done.record(stream)
        backend.set_stream(here)
        # Join all streams: convolutions replayed on several streams without a join have been seen to hang.
        for _, done, _ in self._lanes:
            here.wait_event(done)
        for dtype, values in self._values.items():
            torch.cat(values, out=self._tables[dtype][len(self._rows)])
        self._rows.append(rows_of(batch))

    def end(self) -> None:
        """Let every member note the values of its steps."""
        tables = {dtype: table[: len(self._rows)].cpu() for dtype, table in self._tables.items()}
        for member, columns in zip(self._members, self._columns, strict=True):
            member.work.note({name: tables[dtype][:, at] for name, (dtype, at) in columns.items()}, *self._rows)


class CudaGraphs(Interleaved):
    """Members whose steps are replayed where possible, and taken eagerly where not."""

    #: The first of the streams on which captured steps run: parts of a flotilla use different ones.
    first_lane = 0
    #: About the time of all members on the device in the last unit, one after another; 0 if it was not measured.
    device_seconds = 0.0

    def __init__(self, sessions: Sequence[TorchSession], *, loose: bool = False) -> None:
        super().__init__(sessions)
        self._cache = sessions[0].cache.part(GraphCache)
        #: Whether bits may differ from those of eager steps. Then a comparison of one model holds for all sizes of it.
        self.loose = loose

    def _results(self, members: Sequence[Member]) -> list[Result]:
        results = super()._results(members)
        found = self._stopwatch.seconds()
        times = rates.completed([found.get(member, 0.0) for member in members])
        self.device_seconds = sum(times) * self._room
        self.shares = rates.shares(times)
        return results

    def _weights(self, parts: Sequence[Interleaved], seconds: Sequence[float]) -> list[float]:
        times = [part.device_seconds for part in parts if isinstance(part, CudaGraphs)]
        return rates.shares(times) if all(times) else super()._weights(parts, seconds)

    def _part(self, numbers: Sequence[int]) -> CudaGraphs:
        part = super()._part(numbers)
        assert isinstance(part, CudaGraphs)
        part.first_lane, part.loose = numbers[0], self.loose
        return part

    @contextlib.contextmanager
    def _abreast(self, parts: int) -> Iterator[OnLane]:
        # Convolutions replayed on several streams without a join after each step have been seen to hang.
        if any(_compat.convolves(session.model) for session in self.sessions):
            yield lambda number: contextlib.nullcontext()
            return
        with self._cache.abreast(self.sessions[0].device, parts) as on_lane:
            yield on_lane

    def _run(self, members: Sequence[Member], batches: Batches) -> Generator[None]:
        self._room = len(batches)
        self._stopwatch = Stopwatch(self._cache.backend)
        self._captures: dict[Member, Capture] = {}
        self._replays: Replays | None = None
        #: Replays that are over, whose values are still on the device: to fetch them is to wait for the device.
        self._over: list[Replays] = []
        #: The key of the batches of captured steps, and the number of batches so far.
        self._key: Hashable | None = None
        self._seen = 0
        #: Members with captures of earlier units, and those to capture after a later batch.
        self._steady: list[Member] = []
        self._late: list[Member] = []
        #: Updates of members the rest of whose steps is not captured.
        self._alone: list[UpdateAlone] = []
        #: Captures of this unit that have taken conditions for granted.
        self._unsure: list[Capture] = []
        pace = rates.Pace()
        yield from pace.of(super()._run(members, batches))
        for update in self._alone:
            update.end()
        self._land()
        self._note()
        for member in members:
            if self.loose and isinstance(member.work, Steps):
                member.session.kept[rates.Pace] = pace.seconds()
        self._check_conditions()

    def _check_conditions(self) -> None:
        """Raise ConditionsChanged if a condition that a replayed step took for granted has changed."""
        found = [capture.conditions.changed for capture in self._unsure if capture.conditions is not None]
        if found and torch.stack(found).any():
            for capture in self._unsure:
                self._cache.verdicts |= dict.fromkeys(capture.kinds, CHANGED)
            raise ConditionsChanged

    @property
    def _steps_schedule(self) -> bool:
        """Whether schedules step after each batch."""
        return self.sessions[0].hooks.lr_step == "batch"

    # -------------------------------------------------------------------------------------------- each batch

    @property
    def _clock(self) -> Stopwatch | None:
        """What times the batch, if it is the one that is timed."""
        return self._stopwatch if self._number + 1 == min(TIMED, self._room) else None

    def _timed(self, members: Sequence[Member]) -> contextlib.AbstractContextManager[None]:
        clock = self._clock
        return NOT_TIMED if clock is None else clock.around(members)

    def _launch(self, members: list[Member], batch: Batch) -> list[Member]:
        device = self.sessions[0].device
        key = batch_key(batch, device)
        self._seen += 1
        if self._key is None:
            self._key = key
            self._reuse(members)
            self._steady = list(self._captures)
        elif key != self._key and self._seen == self._room and self._steady:
            self._land()
            self._key = key
            self._reuse(members)
            # A capture has gradients of its own, to which a smaller batch could not add.
            late = [member for member in self._steady if member.session.options.accumulate == 1]
            self._late = [member for member in late if member not in self._captures]
        if key != self._key or not self._captures:
            self._land()
            self._note()
            return members
        scheduled = [member.work for member in self._captures if isinstance(member.work, Steps)]
        scheduled = scheduled if self._steps_schedule else []
        for steps in scheduled:
            steps.begin()
        if self._replays is None or scheduled:
            self._upload()
        if self._replays is None:
            self._replays = Replays(self._captures, self._room, device, self._cache, self.first_lane)
        self._replays.step(batch, self._clock)
        for steps in scheduled:
            steps.end()
        rest = [member for member in members if member not in self._captures]
        if rest:
            self._note()
        return rest

    def _upload(self) -> None:
        """Bring the learning rates that captured steps read up to date."""
        sessions = [member.session for member in self._captures if isinstance(member.work, Steps)]
        upload(update for session in sessions for update in held_updates(session))

    def _reuse(self, members: list[Member]) -> None:
        """Reuse captures of earlier units that are still valid."""
        found: dict[Member, Capture] = {}
        for member in members:
            if isinstance(member.work, Steps) and (member.work.waiting or member.session.logs):
                continue
            capture = member.session.kept.get(type(member.work), {}).get(self._key)
            if capture is None or any(self._cache.verdicts.get(kind) == CHANGED for kind in capture.kinds):
                continue
            if capture.footing == footing(member, self._key, whole=capture.whole):
                found[member] = capture
        here = Counter(capture.joint for capture in found.values() if capture.joint is not None)
        for member, capture in found.items():
            if capture.joint is None or here[capture.joint] > STAY * capture.joint.count:
                self._use(member, capture)

    def _step(self, members: Sequence[Member], batch: Batch) -> None:
        # Members that share updates, which none do on CUDA, cannot be timed one by one.
        each = [[member] for member in members] if self._clock and self._joint is None else [members]
        for some in each:
            with self._timed(some):
                super()._step(some, batch)
        late, self._late = [member for member in self._late if member.active], []
        device = self.sessions[0].device
        if late and batch_key(batch, device) == self._key:
            streams = randomness.current(device)
            self._watch(late, batch)  # captures are compared with eager steps, which use the streams of their members
            randomness.put(streams, device)

    def _use(self, member: Member, capture: Capture) -> None:
        self._end_replays()
        capture.generator.set_state(member.random[self._cache.backend.random_stream])
        member.draws = frozenset()
        capture.attach()
        if capture.conditions is not None:
            capture.conditions.changed.zero_()
            self._unsure.append(capture)
        if isinstance(member.work, Steps):
            member.work.replay = None
            member.work.direct = None if capture.whole or member.session.large else DirectUpdates(member.session)
        self._captures[member] = capture

    def _end_replays(self) -> None:
        if self._replays is not None:
            self._over.append(self._replays)
            self._replays = None

    def _note(self) -> None:
        """Let members note the values of replays that are over."""
        for replays in self._over:
            replays.end()
        self._over = []

    def _land(self) -> None:
        """Continue eagerly from the state that the captured steps have reached."""
        self._end_replays()
        stream = self._cache.backend.random_stream
        for member, capture in self._captures.items():
            member.random[stream] = capture.generator.get_state()
            member.draws = frozenset({stream})
        self._captures = {}

    # ------------------------------------------------------------------------------------------ a new capture

    def _watch(self, members: list[Member], batch: Batch) -> None:
        for form, some in alike(members).items():
            self._attempt_together(form, some, batch)
        for member in members:
            if member in self._captures:
                continue
            if isinstance(member.work, Steps) and member.work.waiting:
                self._late.append(member)  # its optimizer has no state before the first update
                continue
            why = self._attempt(member, batch, whole=True)
            if not why:
                continue
            if not isinstance(member.work, Steps):
                self._tell(f"evaluations are not captured, and trials are evaluated in turn: {why}")
            elif self._attempt(member, batch, whole=False):
                self._leave_update(member.work, member.session, why)
            else:
                self._tell(f"{ONLY_GRADIENTS}: {why}")

    def _leave_update(self, steps: Steps, session: TorchSession, why: str) -> None:
        """Let the next updates be captured alone, because the rest of the steps cannot be captured."""
        steps.replay = update = UpdateAlone(
            session, lambda made: self._tell(f"{ONLY_UPDATES if made else NOT_CAPTURED}: {why}")
        )
        self._alone.append(update)

    def _tell(self, text: str) -> None:
        if text not in self._cache.told:
            self._cache.told.add(text)
            messages().warning("%s", text)

    def _attempt(self, member: Member, batch: Batch, *, whole: bool) -> str:
        """Capture the member's step, with or without its update, and use the capture; or return a reason against it."""
        session = member.session
        kind = self._kind(member, whole=whole)
        verdicts = self._cache.verdicts
        if verdicts.get(kind):
            return verdicts[kind]
        conditions = self._cache.conditions.get(kind_of_step(member, self._key))
        similar = whole, type(member.work), loose_kind_of(session)
        compared = kind in verdicts or (self.loose and similar in verdicts)
        # Conditions may depend on the weights, so that those of one member need not be those of others.
        before = None if compared and not conditions else copies(session)
        try:
            if self._key is None:
                raise Refused("a batch has a column that is not a tensor")
            inputs = self._inputs(member, batch)
            capture = compared_capture(member, inputs, self._key, before, whole=whole, repeats=self.repeats)
        except Refused as reason:
            verdicts[kind] = str(reason)  # the exception itself would keep its tensors
            if before is not None:
                restore(session, before)  # undo what the attempt did on the host
            return verdicts[kind]
        verdicts |= {kind: "", similar: ""}
        self._keep(member, capture)
        return ""

    def _kind(self, member: Member, *, whole: bool) -> Hashable:
        """Return what members have in common if what was found about the steps of one holds for the others."""
        return whole, kind_of_step(member, self._key)

    def _keep(self, member: Member, capture: Capture, *kinds: Hashable) -> None:
        """Use a new capture, in later units as well. ``kinds`` are those of the members of a capture of several."""
        capture.kinds = (*kinds, self._kind(member, whole=True), self._kind(member, whole=False))
        capture.footing = footing(member, self._key, whole=capture.whole)
        kept = member.session.kept.setdefault(type(member.work), {})
        kept[self._key] = capture
        if len(kept) > SIZES:
            del kept[next(iter(kept))]
        self._use(member, capture)

    def _attempt_together(self, form: str, members: Sequence[Member], batch: Batch) -> None:
        """Capture the gradients of members of one kind as one, and use the captures, if that is possible and pays."""
        kind = (Joint, form, self._key)
        verdicts = self._cache.verdicts
        if verdicts.get(kind) or self._key is None:
            return
        hosts = [HostState(member.session) for member in members]
        try:
            inputs = self._inputs(members[0], batch)
            captures = captured_together(members, inputs, repeats=self.repeats)
            for host in hosts:
                check_host(host)
            reasons = add_updates(captures, inputs)
        except Refused as reason:
            verdicts[kind] = str(reason)
            return
        finally:
            for member, host in zip(members, hosts, strict=True):
                host.restore()
                start_over(member.work)
        verdicts[kind] = ""
        for why in reasons:
            self._tell(f"{ONLY_GRADIENTS}: {why}")
        for member, capture in captures.items():
            self._keep(member, capture, kind)

    def _inputs(self, member: Member, batch: Batch) -> Batch:
        """Copy a batch to where captured steps of the member read it."""
        # Trials with batches of other sizes step at the same time, and their last batches may have the same size.
        size = dict.get(member.session.config, "batch_size") if isinstance(member.work, Steps) else None
        inputs = self._cache.inputs.setdefault((size, self._key), {})
        for name, value in batch.items():
            inputs.setdefault(name, torch.empty_like(value)).copy_(value)
        return inputs
