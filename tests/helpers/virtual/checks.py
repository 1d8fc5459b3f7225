"""What must hold of an experiment in virtual time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.rowsum import add, means
from hopfleet.domain.trial import TrialState
from hopfleet.domain.version_ref import VersionRef
from hopfleet.scheduler.invariants import validate_history
from hopfleet.scheduler.progress import Progress
from hopfleet.scheduler.schedule import Schedule
from hopfleet.simulation.store import Model
from tests.helpers.attempts import Attempts
from tests.helpers.virtual.fleet import Fleet, train_sums, valid_sums
from tests.helpers.virtual.settings import REQUESTS, Fault, Setting, controller_of

WORK_CONSERVING = {"longest-remaining", "nearly-done", "random"}
"""Policies under which no worker is idle while it could work."""
UNHEARD = {"deadly", "zombie", "mute", "deaf", "late", "crash", "unwritten", "partial"}
"""Faults after which a worker may write a file that the controller does not hear of, or not at once."""
DAMAGE = {"unloadable", "vanish", "rot", "repeat"}
"""Faults after which a saved version may be gone for good."""
LOSSES = {"deadly", "lose", "leave", "zombie", "mute", "deaf"}
"""Faults after which a worker is taken for dead."""


class Checks:
    """All that must hold of an experiment in virtual time, on the way and at its end."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.fleet = Fleet(setting)
        self.controller = controller_of(setting)
        self.messages: list[m.Message] = []
        self.boundaries: list[int] = []
        self.best: dict[str, tuple[int, float]] = {}
        self.ended: dict[str, m.TrialEnded] = {}
        self.models: dict[tuple[str, int], Model] = {}
        self.blamed: set[str] = set()
        #: The faults that struck, in order.
        self.struck: list[str] = []
        self.deleted: dict[str, Progress] = {}
        #: Files that were damaged, or went with the machine's memory.
        self.lost: set[VersionRef] = set()
        #: Versions of trials before what has just been taken in; saves that were told of before their units.
        self.versions: dict[str, int] = {}
        self.premature: set[int] = set()
        #: The history, attempt by attempt, once the experiment has ended.
        self.attempts = Attempts(setting.partitions)
        #: How the controller dies the next time that it does something.
        self.doom: Fault | None = None
        self.makespan = 0.0

    @property
    def happened(self) -> set[str]:
        return set(self.struck)

    def replaced(self, drop: m.DropVersion) -> bool:
        """Whether another file is that version now."""
        progress = self.controller.schedule.find(drop.trial)
        saved = progress.saved.get(drop.ref.version)
        return saved is not None and saved.attempt != drop.ref.attempt

    def check_taken(
        self, known: dict[str, Progress], before: dict[str, dict[int, bool]], messages: Sequence[m.Message]
    ) -> None:
        """What has just been journaled, against what was known and saved before."""
        gone = {message.trial for message in messages if isinstance(message, m.TrialDeleted)}
        ending = {message.trial for message in messages if isinstance(message, (m.TrialEnded, m.TrialPaused))}
        self.deleted |= {trial: known[trial] for trial in gone}
        for index, message in enumerate(messages):
            match message:
                case m.VersionSaved(ref=ref) if ref.attempt not in self.premature:
                    saved = before[ref.trial]
                    saved[ref.version] = message.durable or saved.get(ref.version, False)
                case m.UnitFinished() if message.unit.trains:
                    author, model = self.fleet.authors[message.attempt]
                    lost = author.lost is not None and not any(other is author.lost for other in messages[index:])
                    assert author.name == message.worker and not lost, "a zombie's report counts"
                    self.check_model(known[message.trial], message.version, model)
                case m.EpochEnded():
                    self.check_epoch(message)
                case m.TrialEnded():
                    self.ended[message.trial] = message
                case m.VersionLost(ref=ref, intact=True):
                    self.lost.add(ref)
                case m.DropVersion(ref=ref) if ref.attempt in self.premature or ref in self.lost:
                    pass
                case m.DropVersion() if message.trial not in gone and not self.replaced(message):
                    self.check_drop(message, before[message.trial], ending=message.trial in ending)

    def check_model(self, progress: Progress, version: int, model: Model) -> None:
        """A version is the same whenever it is made, and a partition comes once in an epoch."""
        assert len(model) == version
        trial = progress.trial.id
        if progress.trial.parent is not None:
            base = progress.trial.parent.version
            owner = self.owner(progress, base)  # its parent may itself have got it from another one
            assert model[:base] == self.models[owner, base], "not its parent's model"
        for made in range(1, version):
            self.models.setdefault((trial, made), model[:made])
        assert self.models.setdefault((trial, version), model) == model, "re-run in another order"
        assert len(set(model)) == len(model)
        assert [epoch for epoch, _ in model] == [index // self.setting.partitions + 1 for index in range(version)]

    def check_missing(self) -> None:
        """Who waits, waits for partitions that are nowhere, and the journal says for which."""
        state, schedule = self.controller.state, self.controller.schedule
        told = [message for message in self.messages if isinstance(message, m.PartitionsMissing)]
        assert told[-1] == m.PartitionsMissing(state.missing, state.missing_valid)
        assert not any(schedule.replicas(partition) for partition in state.missing)
        for slot in schedule.slots.values():
            for partition in state.missing_valid:
                assert slot.retired or not schedule.can_evaluate(slot, partition)

    def check_epoch(self, message: m.EpochEnded) -> None:
        """Metrics do not depend on who worked, in which order, and how often it went wrong."""
        trial, epoch = message.trial, message.epoch
        progress = self.controller.schedule.find(trial)
        first = (epoch - 1) * self.setting.partitions
        visits = enumerate(progress.visits[first : message.version], first + 1)
        pieces = [train_sums(self.owner(progress, version), epoch, partition) for version, partition in visits]
        pieces += [valid_sums(trial, epoch, partition) for partition in range(self.setting.valid)]
        assert message.metrics == means(add(pieces))
        assert message.version == epoch * self.setting.partitions
        value = message.metrics[self.setting.metric]
        assert message.best == (trial not in self.best or value < self.best[trial][1])
        if message.best:
            self.best[trial] = message.version, value

    def owner(self, progress: Progress, version: int) -> str:
        """The trial whose unit made a version."""
        while version <= progress.base:
            message = next(x for x in self.messages if isinstance(x, m.TrialAdded) and x.trial == progress.trial.id)
            progress = self.controller.schedule.find(message.parent) or self.deleted[message.parent]
        return progress.trial.id

    def check_drop(self, drop: m.DropVersion, saved: dict[int, bool], *, ending: bool) -> None:
        durable = [version for version, is_durable in saved.items() if is_durable]
        best = self.best.get(drop.trial, (None, None))[0]
        if ending:
            assert not saved[drop.ref.version] or drop.ref.version not in (max(durable), best)
            return
        assert drop.ref.version not in (max(saved), max(durable, default=None), best)
        assert drop.ref.version != self.controller.schedule.trials[drop.trial].version

    def check_references(self) -> None:
        """Whatever a trial that lives, is paused or has ended refers to is there; nothing else is, but what comes."""
        schedule = self.controller.schedule
        files = set(schedule.files())
        gone = files.difference(self.fleet.saved.files, self.lost, self.fleet.saved.released)
        assert not gone, f"{gone} are gone"
        for progress in [*schedule.trials.values(), *schedule.parked.values()]:
            needed = set(progress.lends.values())
            if progress.state in (TrialState.PAUSED, TrialState.COMPLETED, TrialState.STOPPED):
                best = progress.best[0] if progress.best else progress.version
                needed |= {version for version in (best, progress.version) if version}
            missing = needed.difference(progress.saved)
            assert missing <= {version for name, version, _ in self.lost if name == progress.trial.id}
        # A file that the controller does not hear of stays until a run begins or ends.
        for key in self.fleet.saved.files.keys() - files if UNHEARD.isdisjoint(self.struck) else ():
            progress = schedule.find(key.trial)  # a clone's copy is written before it is reported
            assert schedule.refers(key) or key.attempt in progress.saves, f"{key} is never deleted"

    def check_kept(self) -> None:
        for progress in self.controller.schedule.trials.values():
            saved = progress.saved
            if len(saved) > 1:  # the newest is always needed
                durable = [version for version, each in saved.items() if each.durable]
                best = progress.best[0] if progress.best else None
                needed = {max(saved), max(durable, default=None), best, *progress.lends.values()}
                assert needed.issuperset(saved), "never freed"

    def check_end(self) -> None:
        setting = self.setting
        validate_history(self.messages, setting.partitions)
        self.attempts.read(self.messages)
        for progress in self.controller.schedule.parked.values():
            assert progress.visits == self.attempts.visits[progress.trial.id]
        assert not self.controller.schedule.trials
        if setting.playful or self.happened & set(REQUESTS):
            for progress in self.controller.schedule.parked.values():
                self.check_parked(progress)
            return
        added = [message for message in self.messages if isinstance(message, m.TrialAdded)]
        assert [message.number for message in added] == list(range(setting.trials))
        for number, message in enumerate(added):
            self.check_trial(message.trial, number)

    def check_parked(self, progress: Progress) -> None:
        trial = progress.trial.id
        assert not progress.lends
        ended = [x.epoch for x in self.messages if isinstance(x, m.EpochEnded) if x.trial == trial]
        if progress.state is TrialState.FAILED:
            return
        assert ended == list(range(progress.base // self.setting.partitions + 1, progress.epochs_ended + 1))
        if progress.state in (TrialState.COMPLETED, TrialState.PAUSED):
            assert progress.epochs_ended == progress.trial.epochs
        if progress.version and not self.happened & DAMAGE:
            model, durable = self.stored(trial, progress.version)
            assert durable and model == self.models.get((trial, progress.version), model)
            assert [partition for _, partition in model] == progress.visits

    def check_trial(self, trial: str, number: int) -> None:
        setting, end = self.setting, self.ended[trial]
        if end.state is TrialState.FAILED:
            poisoned = "workers in a row were lost" in end.reason and self.happened & LOSSES
            assert trial in self.blamed or poisoned, end
            return
        stop = setting.stops.get(number, setting.epochs)
        assert end.state is (TrialState.STOPPED if stop < setting.epochs else TrialState.COMPLETED)
        last = stop * setting.partitions
        model = self.models[trial, last]
        assert sorted(model) == list(itertools.product(range(1, stop + 1), range(setting.partitions)))
        ended = [
            message.epoch for message in self.messages if isinstance(message, m.EpochEnded) if message.trial == trial
        ]
        assert ended == list(range(1, stop + 1))
        if not self.happened & DAMAGE:
            assert self.stored(trial, last) == (model, True)
            best = self.best[trial][0]
            assert self.stored(trial, best) == (self.models[trial, best], True)
        if not self.happened:
            assert {version for name, version, _ in self.fleet.saved.files if name == trial} == {
                last,
                self.best[trial][0],
            }

    def stored(self, trial: str, version: int) -> tuple[Model, bool]:
        """The file that is a version."""
        saved = self.controller.schedule.find(trial).saved[version]
        return self.fleet.saved.files[VersionRef(trial, version, saved.attempt)]


def durables(progress: Progress) -> dict[int, bool]:
    """Saved versions, and whether each is durable."""
    return {version: saved.durable for version, saved in progress.saved.items()}


def check_nobody_waits(schedule: Schedule, policy: str) -> None:
    """No worker is idle while there is something that it could do, unless its policy means it to wait for an event."""
    coming = len(schedule.idle) < len(schedule.slots) or any(
        progress.version > 0 and progress.version not in progress.saved for progress in schedule.ready.values()
    )
    may_wait = policy not in WORK_CONSERVING and coming
    for slot in schedule.idle.values():
        for progress in schedule.ready.values() if not may_wait else ():
            assert not list(schedule.options(progress, slot)), f"{slot.worker} could train {progress.trial.id}"
        for progress in schedule.awaiting.values():
            left = [part for part in schedule.unevaluated(progress) if schedule.can_evaluate(slot, part)]
            assert not left or not progress.loadable_by(slot.worker), (
                f"{slot.worker} could evaluate {progress.trial.id}"
            )


def through_json(messages: Sequence[m.Message]) -> list[m.Message]:
    """Messages as they come back from a journal."""
    encoded = json.loads(json.dumps([m.encode(message) for message in messages]))
    return [m.decode(kind, body) for kind, body in encoded]


def state_of(controller: Controller) -> dict[str, object]:
    """All that a controller knows and that its journal must give back."""
    schedule, state = controller.schedule, controller.state
    return {
        "trials": schedule.trials,
        "parked": schedule.parked,
        "urgent": schedule.urgent,
        "slots": schedule.slots,
        "ready": list(schedule.ready),
        "awaiting": list(schedule.awaiting),
        "idle": list(schedule.idle),
        "owed": schedule.owed,
        "replicas": [schedule.replicas(partition) for partition in range(schedule.partitions)],
        "measured": (schedule.seconds, schedule.measured),
        "flags": (controller.finished, controller.draining, controller.held, controller.elapsed),
        "next": (state.next_number, state.next_attempt, state.suggested, state.pointed),
        "open": (state.wanted, state.requests),
        "places": (list(state.coming), state.refused, state.missing, state.missing_valid),
        "trouble": (state.stopped, state.losses.in_a_row, state.hopeless),
    }
