"""Trials that do not see what other trials change in their process.

A setting that ``build`` makes belongs to its trial: it is in force while the trial's code runs, in every unit and on
every worker, since ``build`` runs there too. A change that a later hook makes lasts until the unit ends, so that bits
do not depend on which units a worker ran before. Trials train together only if their own settings are the same and
if their code leaves all settings as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hopfleet.frameworks.base import GivenUp, IsolationError
from hopfleet.frameworks.process_settings import ABSENT, Changes, FoundChanges, ProcessSetting, Shared, changed, same

State = Sequence[Mapping[str, Any]]
"""The values of all settings, in the order of the table."""

SHOWN = 3
"""Names of settings in a message at most."""


class SettingsChanged(IsolationError):
    """A trial changed settings of the process while it trained together with others: ``member``, if that is known."""

    lasting = False

    def __init__(self, what: str, member: int | None = None) -> None:
        super().__init__(f"a trial changed {what}")
        self.member = member


class Isolation:
    """The settings of this process, put back after each trial's turn."""

    def __init__(self, settings: Sequence[ProcessSetting], *, guest: bool) -> None:
        self._settings = settings
        self._guest = guest
        #: The settings of the process between two turns; those that take long to read are known in a worker's process.
        self._outside: list[Mapping[str, Any]] = []
        self._glances = [setting.glance for setting in settings if setting.glance is not None]

    @contextlib.contextmanager
    def around(self, own: Changes) -> Iterator[FoundChanges]:
        """Have a trial's ``own`` settings in force, and those of the process afterwards."""
        outside = self._read_outside()
        self._put(own)
        inside = self._read() if own else outside
        found = FoundChanges()
        try:
            yield found
        finally:
            self._put_back(outside, inside, found)
            self._outside = outside

    def _put_back(self, outside: list[Mapping[str, Any]], inside: State, found: FoundChanges) -> None:
        for number, (setting, before, own) in enumerate(zip(self._settings, outside, inside, strict=True)):
            now = setting.values()
            if own is before and same(now, before):
                continue
            for key, value in changed(own, now).items():
                if setting.restore is None or isinstance(value, Shared):
                    found.left.append(named(setting.name, key))
                else:
                    found.changes.setdefault(setting.name, {})[key] = value
            back = {
                key: before.get(key, ABSENT)
                for key, value in changed(before, now).items()
                if not isinstance(value, Shared)
            }
            if back:
                setting.put(back)
            outside[number] = setting.values()

    def _read_outside(self) -> list[Mapping[str, Any]]:
        if self._guest or not self._outside:
            return self._read()
        pairs = zip(self._settings, self._outside, strict=True)
        return [before if setting.glance is None else setting.values() for setting, before in pairs]

    def _read(self) -> list[Mapping[str, Any]]:
        return [setting.values() for setting in self._settings]

    def _put(self, own: Changes) -> None:
        if own:
            for setting in self._settings:
                if setting.name in own:
                    setting.put(own[setting.name])

    # --------------------------------------------------------------------------------------- training together

    @contextlib.contextmanager
    def around_all(self, own: Changes) -> Iterator[Callable[[int], None]]:
        """Have the ``own`` settings of several trials in force, which must not change them.

        Yield a check to call with the number of a trial before its turn. It raises SettingsChanged, and so does the end
        of the context.
        """
        first: list[object] = []
        latest: int | None = None

        def check(number: int) -> None:
            nonlocal latest
            now = [glance() for glance in self._glances]
            if not first:
                first.extend(now)
            elif now != first:
                raise SettingsChanged("settings of the process", latest)
            latest = number

        failure: Exception | None = None
        with self.around(own) as found:
            try:
                yield check
            except GivenUp:
                raise
            except Exception as error:
                failure = error  # the change of a setting may be its cause
        if found.changes:
            member = failure.member if isinstance(failure, SettingsChanged) else None
            raise SettingsChanged(listed(found.changes), member) from failure
        if failure is not None:
            raise failure


def merged(own: Changes, further: Changes) -> Changes:
    """Return a trial's own settings with further changes."""
    return {name: {**own.get(name, {}), **further.get(name, {})} for name in {**own, **further}}


def named(setting: str, key: object) -> str:
    """Return the name of a setting, with that of its key."""
    text = key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)
    return f"{setting} ({text})" if text else setting


def listed(changes: Changes) -> str:
    """Return the names of some settings as text."""
    names = [named(setting, key) for setting, values in changes.items() for key in values]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(sorted(names)[:SHOWN]) + more
