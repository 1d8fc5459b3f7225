"""Who is started where, and when."""

from __future__ import annotations

import math

from hopfleet.backends.ray.pending_workers import Vacancies, Vacancy


def test_workers_go_where_there_is_most_room_and_others_wait() -> None:
    vacancies = Vacancies()
    vacancies.add(*[Vacancy()] * 4)
    assert vacancies.fill(10.0, {"a", "b"}, {"a": 1, "b": 2}) == [("b", 0), ("a", 0), ("b", 0)]
    assert vacancies.homeless({"a", "b"}) == [Vacancy()]
    assert vacancies.fill(11.0, {"a", "b"}, {"a": 0, "b": 1}) == [("b", 0)]
    assert vacancies.homeless({"a", "b"}) == []


def test_who_takes_the_place_of_another_goes_to_its_node_while_that_is_there() -> None:
    vacancies = Vacancies()
    vacancies.add(Vacancy(0.0, "a", 1), Vacancy(0.0, "gone", 2), Vacancy(0.0, "gone", 3))
    assert vacancies.nodes() == {"a", "gone"}
    assert vacancies.homeless({"a"}) == [Vacancy(0.0, "gone", 2), Vacancy(0.0, "gone", 3)]
    # One node is being prepared: nobody but who belongs there goes there.
    assert vacancies.fill(0.0, {"a", "b"}, {"b": 1}) == [("a", 1), ("b", 2)]
    assert vacancies.homeless({"gone"}) == [Vacancy(0.0, None, 3)], "it goes anywhere now"


def test_a_place_that_is_taken_is_no_room_for_others() -> None:
    vacancies = Vacancies()
    vacancies.add(Vacancy(node="a"), Vacancy())
    assert vacancies.fill(0.0, {"a"}, {"a": 1}) == [("a", 0)]


def test_who_is_not_due_waits() -> None:
    vacancies = Vacancies()
    assert vacancies.pause(0.0) == math.inf
    vacancies.add(Vacancy(5.0, "a", 1), Vacancy(3.0, "a", 2))
    assert vacancies.pause(1.0) == 2.0
    assert vacancies.fill(3.0, {"a"}, {}) == [("a", 2)]
    assert vacancies.pause(3.0) == 2.0


def test_a_node_that_joins_houses_those_who_wait_the_longest() -> None:
    vacancies = Vacancies()
    vacancies.add(Vacancy(failures=1), Vacancy(node="a", failures=2), Vacancy(node="gone", failures=3), Vacancy())
    assert vacancies.house(2, {"a"}) == [1, 3]
    assert vacancies.homeless({"a"}) == [Vacancy()]
    assert vacancies.nodes() == {"a"}
    assert vacancies.house(2, {"a"}) == [0]


def test_who_is_due() -> None:
    made = Vacancies()
    assert not made.due(9.0)
    made.add(Vacancy(5.0, "a"))
    assert not made.due(4.0)
    assert made.due(5.0)
