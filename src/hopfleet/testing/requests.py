"""The tests that the queue of requests in every journal must pass; ``hopfleet.testing.stores`` has the others."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from pathlib import Path

from hopfleet.domain.bounds import DEPTH, SIZE
from hopfleet.extend import JournalStore, RunFolder
from hopfleet.extend import messages as m


class RequestSuite:
    """The tests of the queue of requests."""

    def journal(self, folder: RunFolder, *, writable: bool) -> JournalStore:
        raise AssertionError("override journal()")

    @contextlib.contextmanager
    def opened_by(self, path: Path, *writable: bool) -> Iterator[list[JournalStore]]:
        """Open the journal of a run folder several times."""
        with contextlib.ExitStack() as stack:
            journals = [self.journal(RunFolder(path), writable=each) for each in writable]
            for journal in journals:
                stack.enter_context(contextlib.closing(journal))
            yield journals

    def test_requests_wait_until_they_are_journaled(self, tmp_path: Path) -> None:
        with self.opened_by(tmp_path, True, False) as (writer, other):
            assert not writer.requests.pending() and not other.requests.trail()
            first = other.requests.ask("ada@box", "stop", {"trial": "t0001", "now": True})
            second = other.requests.ask("bob@box", "pause", {})
            assert 0 < first < second
            asked = m.RequestMade("stop", {"trial": "t0001", "now": True}, "ada@box", first)
            paused = m.RequestMade("pause", {}, "bob@box", second)
            assert writer.requests.pending() == writer.requests.pending() == [asked, paused]
            writer.append(1.0, [asked])
            assert writer.requests.pending() == [paused]
        with self.opened_by(tmp_path, True) as (writer,):
            assert writer.requests.pending() == [paused], "a later run takes the rest"

    def test_answers_are_read_from_the_journal(self, tmp_path: Path) -> None:
        with self.opened_by(tmp_path, True, False) as (writer, other):
            first, second = (other.requests.ask("ada", name, {}) for name in ("pause", "proceed"))
            assert other.requests.answer(first) is None
            answer = m.RequestAnswered(first, granted=False, text="no")
            writer.append(1.0, [m.RequestMade("pause", {}, "ada", first), answer])
            assert (other.requests.answer(first), other.requests.answer(second)) == (answer, None)
            refused, waiting = other.requests.trail()
            assert (refused.number, refused.who, refused.request) == (first, "ada", "pause")
            assert (refused.granted, refused.text) == (False, "no")
            assert (waiting.number, waiting.granted, waiting.text) == (second, None, "")
            assert 0 < refused.time <= waiting.time

    def test_what_is_unfit_for_a_journal_is_told_instead_of_its_arguments(self, tmp_path: Path) -> None:
        deep: object = 1
        for _ in range(DEPTH + 1):
            deep = {"a": deep}
        fit = {"lr": [math.nan, math.inf, -math.inf, 0.1], "\ud800": "\x00\ud800", "n": 2**63}
        for arguments in (fit, {"config": deep}, {"level": 10**3000}, {"name": "x" * SIZE}):
            with self.opened_by(tmp_path, True, False) as (writer, other):
                number = other.requests.ask("ada\ud800", "add", arguments)
                (asked,) = writer.requests.pending()
                assert (asked.number, bool(asked.problem)) == (number, arguments is not fit), asked.problem
                assert repr(asked.arguments) == repr(fit if arguments is fit else {})
                writer.append(1.0, [asked, m.RequestAnswered(number, False, asked.problem)])
            with self.opened_by(tmp_path, True) as (writer,):
                assert not writer.requests.pending() and writer.requests.answer(number) is not None
                *_, (_, _, again), _ = writer.read()
                assert repr(again) == repr(asked)

    def test_many_processes_make_requests_at_once(self, tmp_path: Path) -> None:
        def ask(who: str) -> None:
            with self.opened_by(tmp_path, False) as (journal,):
                mine.setdefault(who, []).extend(journal.requests.ask(who, "pause", {}) for _ in range(5))

        mine: dict[str, list[int]] = {}
        with self.opened_by(tmp_path, True) as (writer,):
            threads = [threading.Thread(target=ask, args=(f"u{number}",)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            found = writer.requests.pending()
            assert len(found) == 20
            assert [request.number for request in found] == sorted({request.number for request in found})
            for who, numbers in mine.items():
                assert numbers == [request.number for request in found if request.who == who]
