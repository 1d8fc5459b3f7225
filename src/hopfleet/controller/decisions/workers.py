"""What happens to workers: partitions placed on them, units given up, releases, and the end of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hopfleet.controller.decisions.trials import exhausted
from hopfleet.controller.state import State
from hopfleet.domain import messages as m
from hopfleet.scheduler.placement import lost, lost_valid, placements
from hopfleet.scheduler.timeouts import Timeout, estimate, limit, shortest


def overdue_units(state: State, timeout: Timeout, ages: Mapping[str, float]) -> list[m.Event]:
    """Return the units that run far too long, given for how many seconds each worker has run its current one."""
    least, found = shortest(timeout), list[m.Event]()
    for slot in state.schedule.slots.values():
        seconds = ages.get(slot.worker, 0.0)
        if least is None or seconds <= least or slot.unit is None or slot.overdue:
            continue
        most = limit(state.schedule, slot, timeout)
        if most is not None and seconds > most:
            expected = estimate(state.schedule, slot) or 0.0
            found.append(m.UnitOverdue(slot.worker, slot.attempt, seconds, expected, most, timeout == "auto"))
    return found


def give_up_overdue(state: State) -> Iterator[m.Message]:
    """Stop overdue units."""
    for slot in state.schedule.slots.values():
        if slot.unit is not None and slot.overdue and slot.worker not in state.stopped:
            yield state.decide(m.StopUnit(slot.worker, slot.unit.trial, slot.attempt, overdue=True))


def place_partitions(state: State) -> Iterator[m.Message]:
    """Have workers get partitions that no worker can read, or that too few can."""
    if not state.pinned or state.schedule.starting or state.schedule.regrouping:
        return  # workers that are about to join, and teams to be formed, bring their own partitions
    for place in list(placements(state.schedule, state.coming, state.refused)):
        yield state.decide(m.PlacePartition(*place))
    missing = tuple(lost(state.schedule, state.coming)), tuple(lost_valid(state.schedule, state.coming))
    if missing != (state.missing, state.missing_valid):
        yield state.decide(m.PartitionsMissing(*missing))


def release_workers(state: State) -> Iterator[m.Message]:
    """Release retired workers that have nothing left to do."""
    for slot in state.schedule.slots.values():
        busy = slot.unit is not None or slot.worker in state.schedule.stuck
        wanted = any(partition in (slot.readable(valid) or ()) for _, partition, valid in state.coming)
        if slot.retired and not busy and not slot.released and not wanted:
            yield state.decide(m.ReleaseWorker(slot.worker))


def finish(state: State) -> Iterator[m.Message]:
    """End the run when nothing is left to do, or when it is drained and everything is saved."""
    if state.finished:
        return
    live = state.schedule.trials.values()
    if exhausted(state):
        yield state.decide(m.Finish(complete=True))
    elif state.ending:
        # A worker whose disk is full can save nothing, and may wait for the disk in the middle of a unit.
        stuck, halted = state.schedule.stuck, state.schedule.delayed.values()
        busy = any(slot.unit is not None and slot.worker not in halted for slot in state.schedule.slots.values())
        safe = all(p.holder is None or p.holder in stuck or not p.version or p.durable(p.version) for p in live)
        # The save of an earlier version, which may be the best, can take longer than that of the last.
        saving = any(save.durable and save.worker not in stuck for p in live for save in p.saves.values())
        if safe and not busy and not saving:
            yield state.decide(m.Finish(complete=False, reason=state.hopeless))
