"""The faults that strike an experiment in virtual time, by kind. Each returns whether there was anything to strike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hopfleet.domain import messages as m
from tests.helpers.virtual.checks import state_of
from tests.helpers.virtual.settings import REQUESTS, Fault, pick

if TYPE_CHECKING:
    from tests.helpers.virtual.driver import Driver
    from tests.helpers.virtual.fleet import FaultyWorker

Strike = Callable[["Driver", Fault], bool]


# ------------------------------------------------------------------------------------------------------- workers


def on_a_worker(strike: Callable[[Driver, FaultyWorker], None]) -> Strike:
    """A fault of one worker, if there is any."""

    def struck(driver: Driver, fault: Fault) -> bool:
        workers = list(driver.fleet.workers.values())
        if workers:
            strike(driver, pick(workers, fault))
        return bool(workers)

    return struck


def leave(driver: Driver, worker: FaultyWorker) -> None:
    slots = driver.controller.schedule.slots
    others = [other for other in driver.fleet.workers.values() if other is not worker and other.name in slots]
    driver.fleet.die(worker, replaced=all(slots[other.name].retired for other in others))


def mute(driver: Driver, worker: FaultyWorker) -> None:
    worker.heard = False
    driver.fleet.lose_later(worker)


def deafen(driver: Driver, worker: FaultyWorker) -> None:
    worker.hears = False
    worker.commands.clear()
    driver.fleet.lose_later(worker)


def delay(driver: Driver, worker: FaultyWorker) -> None:
    worker.late = True


def join(driver: Driver, fault: Fault) -> bool:
    valid = () if driver.setting.evaluators and fault.pick % 3 else None
    driver.fleet.join(None if fault.pick % 2 else (fault.pick % driver.setting.partitions,), valid=valid)
    return True


def refuse(driver: Driver, fault: Fault) -> bool:
    driver.fleet.refusals += 1 + fault.pick % 3
    return True


def fail(driver: Driver, fault: Fault) -> bool:
    busy = [unit.command for worker in driver.fleet.workers.values() for unit in worker.running.values()]
    if busy:
        command = pick(busy, fault)
        driver.fleet.failing.add(command.attempt)
        driver.blamed.add(command.trial)
    return bool(busy)


# ------------------------------------------------------------------------------------------------------- storage


def on_a_trial(strike: Callable[[Driver, str], None]) -> Strike:
    """A fault of one trial, which may fail for it, if there is any."""

    def struck(driver: Driver, fault: Fault) -> bool:
        trials = sorted(driver.controller.schedule.trials)
        if trials:
            trial = pick(trials, fault)
            strike(driver, trial)
            driver.blamed.add(trial)
        return bool(trials)

    return struck


def vanish(driver: Driver, fault: Fault, *, noticed: bool = True) -> bool:
    if not driver.fleet.saved.files:
        return False
    key = pick(sorted(driver.fleet.saved.files), fault)
    del driver.fleet.saved.files[key]
    driver.lost.add(key)
    if noticed:
        driver.fleet.report(m.VersionLost(key, "vanished"))
    return True


# ---------------------------------------------------------------------------------- messages and the controller


def repeat(driver: Driver, fault: Fault) -> bool:
    past = [message for message in driver.messages if driver.repeatable(message)]
    if past:
        event = pick(past, fault)
        # That a trial cannot be saved is as true the second time.
        assert isinstance(event, m.SaveFailed) or driver.controller.refuses(event)
        driver.take(event)
    return True


def request(driver: Driver, fault: Fault) -> bool:
    if driver.controller.finished:
        return False
    driver.take(driver.request(fault))
    return True


def drain(driver: Driver, fault: Fault) -> bool:
    if driver.controller.finished:
        return False
    driver.take(m.RequestMade("drain"))
    return True


def doom(driver: Driver, fault: Fault) -> bool:
    driver.doom = fault
    return True


def crash(driver: Driver, fault: Fault) -> bool:
    assert driver.restored() == state_of(driver.controller)
    driver.resume(durable_only=False, zombies=fault.pick % 2 == 0)
    return True


def cut(driver: Driver, fault: Fault) -> bool:
    driver.resume(durable_only=True)
    return True


STRIKES: Mapping[str, Strike] = {
    "lose": on_a_worker(lambda driver, worker: driver.fleet.die(worker, replaced=True)),
    "leave": on_a_worker(leave),
    "forget": on_a_worker(lambda driver, worker: worker.memory.clear()),
    "zombie": on_a_worker(lambda driver, worker: driver.fleet.die(worker, replaced=True, alive=True)),
    "mute": on_a_worker(mute),
    "deaf": on_a_worker(deafen),
    "late": on_a_worker(delay),
    "refuse": refuse,
    "join": join,
    "raise": fail,
    "unsavable": on_a_trial(lambda driver, trial: driver.fleet.unsavable.add(trial)),
    "unloadable": on_a_trial(lambda driver, trial: driver.fleet.unloadable.add(trial)),
    "deadly": on_a_trial(lambda driver, trial: driver.fleet.deadly.add(trial)),
    "vanish": vanish,
    "rot": lambda driver, fault: vanish(driver, fault, noticed=False),
    "repeat": repeat,
    "drain": drain,
    "unwritten": doom,
    "partial": doom,
    "crash": crash,
    "cut": cut,
    **dict.fromkeys(REQUESTS, request),
}
