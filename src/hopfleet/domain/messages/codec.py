"""The messages' form in the journal and between processes: a kind and a flat JSON object.

Kinds and field names are pinned here, apart from the Python names, so renaming a class or an attribute never breaks a
run folder. A unit and a version reference are spread over flat fields. Fields that an old journal lacks take the
defaults of the class.

Two kinds are only read: before format 4, evaluations were ``Evaluate`` and ``Evaluated`` instead of units of their own
kind of work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hopfleet.domain.messages import commands as c
from hopfleet.domain.messages import decisions as d
from hopfleet.domain.messages import events as e
from hopfleet.domain.placement import SINGLE, Placement, TeamShape
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.step_values import StepValues
from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef

Message = e.Event | d.Decision | c.Command
Body = dict[str, Any]


class _Part(NamedTuple):
    """One attribute of a message class and its form on the wire."""

    name: str
    write: Callable[[Any, Body], None]  #: put an attribute's value into a body
    read: Callable[[Mapping[str, Any]], Any]  #: the value in a body; raises KeyError if the body lacks it
    as_is: bool = False  #: whether a body has the very value under the very name


def _plain(*names: str, **renamed: str) -> tuple[_Part, ...]:
    """Attributes whose values are JSON themselves; ``renamed`` ones have another name on the wire."""
    return tuple(_coded(name, wire=wire) for name, wire in [*zip(names, names, strict=True), *renamed.items()])


def _same(value: Any) -> Any:
    return value


def _coded(
    name: str, encode: Callable[[Any], Any] = _same, decode: Callable[[Any], Any] = _same, *, wire: str = ""
) -> _Part:
    key = wire or name

    def write(value: Any, body: Body) -> None:
        body[key] = encode(value)

    return _Part(name, write, lambda body: decode(body[key]), encode is decode is _same and key == name)


def _if_any(name: str) -> _Part:
    """An attribute that is left out if its value is empty, and then has the default of the class."""

    def write(value: Any, body: Body) -> None:
        if value:
            body[name] = value

    return _Part(name, write, lambda body: body[name])


def _unit(name: str = "unit", default: Work = Work.TRAIN) -> _Part:
    def write(unit: Unit, body: Body) -> None:
        body["trial"], body["epoch"], body["partition"] = unit.trial, unit.epoch, unit.partition
        body["work"] = unit.work.value

    def read(body: Mapping[str, Any]) -> Unit:
        work = Work(body["work"]) if "work" in body else default
        return Unit(body["trial"], body["epoch"], body["partition"], work)

    return _Part(name, write, read)


def _ref(name: str = "ref", *, trial: str = "trial", attempt: str = "attempt", default: int | None = 0) -> _Part:
    def write(ref: VersionRef, body: Body) -> None:
        body[trial], body["version"], body[attempt] = ref

    return _Part(name, write, lambda body: VersionRef(body[trial], body["version"], body.get(attempt, default)))


def _placement(name: str = "placement") -> _Part:
    def write(placement: Placement, body: Body) -> None:
        body["device"] = placement.device
        if placement.shape != SINGLE:
            body["devices"], body["strategy"] = list(placement.devices), placement.strategy

    def read(body: Mapping[str, Any]) -> Placement:
        if "devices" in body:
            return Placement(tuple(body["devices"]), body["strategy"])
        return Placement.on(body["device"])

    return _Part(name, write, read)


def _encode_shapes(shapes: tuple[TeamShape, ...]) -> list[list[object]]:
    return [list(shape) for shape in shapes]


def _decode_shapes(shapes: list[tuple[str, int]]) -> tuple[TeamShape, ...]:
    return tuple(TeamShape(*shape) for shape in shapes)


def _encode_sums(sums: Mapping[str, RowSum]) -> dict[str, list[object]]:
    return {name: value.encode() for name, value in sums.items()}


def _decode_sums(sums: Mapping[str, list[object]]) -> dict[str, RowSum]:
    return {name: RowSum.decode(value) for name, value in sums.items()}


def _write_metric(metric: float | None, body: Body) -> None:
    """Write a metric if there is one: most units have none."""
    if metric is not None:
        body["metric"] = metric


def _tuple(name: str, empty: tuple[Any, ...] | None = ()) -> _Part:
    """An attribute that is a tuple, and is left out if it is ``empty``, the default of the class."""

    def write(value: tuple[Any, ...] | None, body: Body) -> None:
        if value != empty:
            body[name] = list(value or ())

    return _Part(name, write, lambda body: tuple(body[name]))


def _write_team(placement: Placement | None, body: Body) -> None:
    """Write the devices and the strategy of a visit, if it was not an ordinary one on one device."""
    if placement is not None:
        body["team"] = [placement.strategy, *placement.devices]


def _read_team(body: Mapping[str, Any]) -> Placement:
    strategy, *devices = body["team"]
    return Placement(tuple(devices), strategy)


def _write_logged(values: StepValues | None, body: Body) -> None:
    """Write the values of single steps, if there are any: for each name, its steps and its values."""
    if values is not None:
        columns = {name: [list(steps), list(numbers)] for name, (steps, numbers) in values.columns.items()}
        body["logged"] = {"batches_per_step": values.batches_per_step, "columns": columns}


def _read_logged(body: Mapping[str, Any]) -> StepValues:
    logged = body["logged"]
    columns = {name: (tuple(steps), tuple(numbers)) for name, (steps, numbers) in logged["columns"].items()}
    return StepValues(columns, logged["batches_per_step"])


_SUMS = _coded("sums", _encode_sums, _decode_sums)
_PARTITIONS = _coded(
    "partitions", lambda value: value and list(value), lambda value: None if value is None else tuple(value)
)
_RUN_UNIT = (
    *_plain("worker", "attempt", "last", "digest", "flotilla", "more", lookahead="ahead"),
    _ref("model", attempt="saved", default=None),
    _Part("metric", _write_metric, lambda body: body["metric"]),
)
_FINISHED = (
    *_plain("worker", "attempt", "version", "started", "ended", "hopped", "share"),
    _SUMS,
    _coded("unused", list, tuple),
    _tuple("absent"),
    _Part("placement", _write_team, _read_team),
    _if_any("whole"),
    _Part("logged", _write_logged, _read_logged),
)

_KINDS: tuple[tuple[str, type[Any], tuple[_Part, ...]], ...] = (
    (
        "RunStarted",
        e.RunStarted,
        (*_plain("hopfleet", "workers", requests="wishes"), _if_any("definition")),  # prose: allow, a wire name
    ),
    ("WorkerJoined", e.WorkerJoined, (*_plain("worker"), _placement(), _PARTITIONS, _tuple("valid", None))),
    ("WorkerLost", e.WorkerLost, _plain("worker", "reason", "log", "replaced")),
    ("WorkerUnavailable", e.WorkerUnavailable, _plain("reason")),
    ("PartitionPlaced", e.PartitionPlaced, (*_plain("worker", "partition"), _if_any("valid"))),
    ("PartitionUnavailable", e.PartitionUnavailable, (*_plain("worker", "partition", "reason"), _if_any("valid"))),
    ("UnitFinished", e.UnitFinished, (_unit(), *_FINISHED)),
    (
        "UnitFailed",
        e.UnitFailed,
        (_unit(), *_plain("worker", "attempt", "started", "ended", "error", "traceback", "place")),
    ),
    ("UnitStopped", e.UnitStopped, (_unit(), *_plain("worker", "attempt", "started", "ended"))),
    ("UnitOverdue", e.UnitOverdue, _plain("worker", "attempt", "seconds", "expected", "limit", "derived")),
    ("VersionSaved", e.VersionSaved, (_ref(), *_plain("durable", "digest", "size"))),
    ("VersionLost", e.VersionLost, (_ref(attempt="saved"), *_plain("reason", "worker", "attempt"), _if_any("intact"))),
    ("SaveFailed", e.SaveFailed, (_ref(), *_plain("error", "traceback"))),
    ("SaveDelayed", e.SaveDelayed, (_ref(), *_plain("worker", "error"), _if_any("on_node"))),
    ("RecordLogged", e.RecordLogged, _plain("worker", "trial", "text")),
    (
        "OperatorAsked",
        e.RequestMade,
        (*_plain("arguments", "who", "number", request="wish"), _if_any("problem")),  # prose: allow, a wire name
    ),
    (
        "TrialAdded",
        d.TrialAdded,
        (
            *_plain("trial", "number", "config", "seed", "epochs", "origin", "parent"),
            _coded("visits", list, tuple),
            _if_any("planned"),
            _if_any("chosen"),
        ),
    ),
    ("TrialRolledBack", d.TrialRolledBack, _plain("trial", "version")),
    ("EpochEnded", d.EpochEnded, _plain("trial", "epoch", "version", "metrics", "best")),
    ("TrialStopped", d.TrialStopped, _plain("trial", "reason", "delete")),
    ("TrialPaused", d.TrialPaused, _plain("trial")),
    ("TrialResumed", d.TrialResumed, _plain("trial", "epochs")),
    (
        "TrialEnded",
        d.TrialEnded,
        (*_plain("trial", "reason", "traceback"), _coded("state", lambda state: state.value, TrialState)),
    ),
    ("TrialDeleted", d.TrialDeleted, _plain("trial")),
    ("TrialPrioritised", d.TrialPrioritised, _plain("trial", "level")),
    ("SearchExtended", d.SearchExtended, _plain("trials", "epochs", "space")),
    ("RunHeld", d.RunHeld, _plain("held")),
    ("WorkerRetired", d.WorkerRetired, (*_plain("worker"), _if_any("for_teams"))),
    ("PartitionsMissing", d.PartitionsMissing, (_coded("partitions", list, tuple), _tuple("valid"))),
    ("DevicesAllocated", d.DevicesAllocated, (_coded("teams", list, tuple), *_plain("devices", "until"))),
    ("RunStalled", d.RunStalled, _plain("text", "overruled")),
    ("WishAnswered", d.RequestAnswered, _plain("number", "granted", "text")),
    ("RunUnit", c.RunUnit, (_unit(), *_RUN_UNIT)),
    (
        "SaveVersion",
        c.SaveVersion,
        (_ref(), *_plain("worker", "durable", "saved", "digest"), _if_any("waits"), _tuple("replaces")),
    ),
    ("DropVersion", c.DropVersion, (_ref(),)),
    (
        "CopyVersion",
        c.CopyVersion,
        (_ref("source", trial="parent", attempt="saved"), _ref(), *_plain("digest")),
    ),
    ("StopUnit", c.StopUnit, _plain("worker", "trial", "attempt", "overdue")),
    ("PlacePartition", c.PlacePartition, (*_plain("worker", "partition"), _if_any("valid"))),
    ("AddWorkers", c.AddWorkers, _plain("count")),
    ("FormTeams", c.FormTeams, (_coded("shapes", _encode_shapes, _decode_shapes),)),
    ("ReleaseWorker", c.ReleaseWorker, _plain("worker")),
    ("Finish", c.Finish, _plain("complete", "reason")),
)
_READ_ONLY: tuple[tuple[str, type[Any], tuple[_Part, ...]], ...] = (
    ("Evaluate", c.RunUnit, (_unit(default=Work.EVALUATE), *_RUN_UNIT)),
    (
        "Evaluated",
        e.UnitFinished,
        (_unit(default=Work.EVALUATE), *_FINISHED, _Part("version", lambda value, body: None, lambda body: 0)),
    ),
)


def _divided(parts: tuple[_Part, ...]) -> tuple[list[str], list[_Part]]:
    """Return the names that are copied, and the parts that are translated: journals have many messages."""
    return [part.name for part in parts if part.as_is], [part for part in parts if not part.as_is]


_WRITERS = {cls: (kind, *_divided(parts)) for kind, cls, parts in _KINDS}
_READERS = {kind: (cls, *_divided(parts)) for kind, cls, parts in (*_KINDS, *_READ_ONLY)}


def kind_of(cls: type[Any]) -> str:
    """Return the kind of a message class on the wire."""
    return _WRITERS[cls][0]


def encode(message: Message) -> tuple[str, Body]:
    """Return the kind of a message and its fields as JSON values."""
    kind, names, parts = _WRITERS[type(message)]
    body: Body = {name: getattr(message, name) for name in names}
    for part in parts:
        part.write(getattr(message, part.name), body)
    return kind, body


def decode(kind: str, body: Mapping[str, Any]) -> Message:
    """Return the message that ``encode`` turned into ``kind`` and ``body``.

    Raises KeyError for an unknown kind, and TypeError for a body that lacks a required field.
    """
    cls, names, parts = _READERS[kind]
    values = {name: body[name] for name in names if name in body}  # an older journal lacks some fields
    for part in parts:
        try:
            values[part.name] = part.read(body)
        except KeyError:
            continue
    message: Message = cls(**values)
    return message
