"""The table: the bytes of each paradigm, measured and by the formula, and its other costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.paradigms.catalogue import HOPPING, PARADIGMS, Formula, Sizes
from benchmarks.paradigms.harness import Measured

TITLES: dict[str, tuple[str, Formula]] = {
    "hopping": ("**hopping (Hopfleet on Ray)**", HOPPING),
    **{name: (paradigm.title, paradigm.formula) for name, paradigm in PARADIGMS.items()},
}

HEADER = (
    "paradigm",
    "formula",
    "by formula, MB",
    "training, MB",
    "loading, MB",
    "training, s",
    "CPU, s",
    "link, s",
    "loading, s",
    "start, s",
    "disk per host, MB",
    "memory per host, MB",
    "best accuracy",
    "load",
)


def table(results: Mapping[str, Measured], sizes: Sizes, *, rate: float) -> str:
    """Format all measured rows as Markdown."""
    return _markdown([HEADER, *(_cells(name, results[name], sizes, rate) for name in TITLES if name in results)])


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    padded.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(padded)


def _cells(name: str, found: Measured, sizes: Sizes, rate: float) -> tuple[str, ...]:
    title, formula = TITLES[name]
    return (
        title,
        formula.text,
        _megabytes(formula.count(sizes)),
        _megabytes(found.training.bytes),
        _megabytes(found.loading.bytes),
        _seconds(found),
        "–" if math.isnan(found.training.processor) else f"{found.training.processor:.1f}",
        f"{found.training.busiest * 8 / 1e6 / rate:.1f}",
        f"{found.loading.seconds:.1f}",
        f"{found.start:.1f}",
        _megabytes(found.storage),
        _megabytes(found.memory),
        f"{found.best:.3f}",
        f"{found.load:.0f}",
    )


def _seconds(found: Measured) -> str:
    """Format the seconds of training, with those of the fastest and the slowest run if there were several."""
    every = found.notes.get("seconds of all", ())
    spread = f" ({min(every):.1f} to {max(every):.1f})" if len(every) > 1 else ""
    return f"{found.training.seconds:.1f}{spread}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f}" if count < 1e9 else f"{count / 1e6:,.0f}"


def summary(sizes: Sizes, *, rate: float, waits: float = 0.0) -> str:
    """Describe the workload, in one paragraph."""
    device = f" A batch takes {waits:g} ms besides its processor time." if waits else ""
    return (
        f"S = {sizes.S} configurations, k = {sizes.k} epochs, p = {sizes.p} hosts with {rate:g} Mbit/s each; "
        f"m = {sizes.m / 1e6:.3f} MB, D = {sizes.D / 1e6:.1f} MB, ⌈D/bp⌉ = {sizes.b} batches per host and epoch."
        f"{device}"
    )


def bars(results: Mapping[str, Measured], sizes: Sizes) -> str:
    """Compare hopping with its bars; empty if hopping was not measured."""
    if "hopping" not in results:
        return ""
    lines = [(what, f"{found:.2f}", bar, "yes" if ok else "**no**") for what, found, bar, ok in _bars(results, sizes)]
    return _markdown([("hopping", "measured", "bar", "ok"), *lines])


def _bars(results: Mapping[str, Measured], sizes: Sizes) -> Iterator[tuple[str, float, str, bool]]:
    hopping = results["hopping"]
    moved, took = hopping.training.bytes, hopping.training.seconds

    def at_most(what: str, found: float, bar: float) -> tuple[str, float, str, bool]:
        return what, found, f"≤ {bar:.2f}", found <= bar

    def at_least(what: str, found: float, bar: int) -> tuple[str, float, str, bool]:
        return what, found, f"≥ {bar}", found >= bar

    yield at_most("bytes, of kmpS + mS", moved / HOPPING.count(sizes), 1.1)
    for name, bar in (("allreduce", 100), ("ps-sync", 100), ("ps-async", 100), ("reads", 10)):
        if name in results:
            yield at_least(f"bytes of {PARADIGMS[name].title}, of its own", results[name].training.bytes / moved, bar)
    for name, bar in (("allreduce", 3), ("ps-async", 8)):
        if name in results:
            yield at_least(f"time of {PARADIGMS[name].title}, of its own", results[name].training.seconds / took, bar)
    if copies := results.get("copies"):
        yield at_most("time, of full copies", took / copies.training.seconds, 1.05)
        with_it = (took + hopping.loading.seconds) / (copies.training.seconds + copies.loading.seconds)
        yield at_most("the same with the copying of data", with_it, 1.0)
        yield at_most("disk of a host, of full copies", hopping.storage / copies.storage, 1 / sizes.p)
    yield at_most("idle time of workers", 1 - hopping.notes["busy"], 0.05)
    if hop := results.get("hop"):
        yield at_most("a hop between hosts, of the bare transfer", hop.notes["hop"] / hop.notes["bare"], 1.3)


def remarks(results: Mapping[str, Measured], sizes: Sizes) -> list[str]:
    """Return further findings, a paragraph each."""
    about = {"hopping-large": _large, "hop": _hop, "hopping-cut": _cut}
    found = [_moved(results["hopping"], sizes)] if "hopping" in results else []
    return found + [about[name](results) for name in about if name in results]


def _moved(hopping: Measured, sizes: Sizes) -> str:
    notes = hopping.notes
    more = notes["fetched"] - sizes.S
    ratio = hopping.training.bytes / (HOPPING.count(sizes) + more * sizes.m)
    low, middle, high = notes["unit"]
    stored, restored, head = (f"{notes[name] / 1e6:.1f} MB" for name in ("stored", "restored", "head"))
    return (
        f"Of what hopping moved, {stored} went to the storage host and {restored} came from there; {head} came to the "
        f"head or went from it, the last versions included. {notes['fetched']} versions were fetched into the run "
        f"folder, {more} more than the formula counts: the best epoch of a trial need not be its last. With these in "
        f"the formula, the bytes are {ratio:.2f} of it. {notes['hops']} of {notes['units']} units hopped. "
        f"Workers were busy for {notes['busy']:.0%} of the time. A unit took {low:.2f} to {high:.2f} s in eight of ten "
        f"cases, {middle:.2f} s in the median."
    )


def _large(results: Mapping[str, Measured]) -> str:
    found = results["hopping-large"]
    model, formula, moved = found.notes["model"], found.notes["formula"], found.training.bytes
    return (
        f"With a larger model, of {model / 1e6:.2f} MB, and one epoch, hopping moved {moved / 1e6:.1f} MB, "
        f"{moved / formula:.2f} times kmpS + mS."
    )


def _hop(results: Mapping[str, Measured]) -> str:
    notes, load = results["hop"].notes, results["hop"].load
    return (
        f"A model of {notes['megabytes']} MB hops from host to host in {notes['hop']:.2f} s; the bare transfer of as "
        f"many bytes takes {notes['bare']:.2f} s, so a hop takes {notes['hop'] / notes['bare']:.2f} times as long "
        f"(load {load:.0f})."
    )


def _cut(results: Mapping[str, Measured]) -> str:
    notes = results["hopping-cut"].notes
    lost = notes["lost workers"]
    return (
        f"With the link of one host cut for {notes['cut']:g} s: {notes['units']} units ended for {notes['wanted']} "
        f"that count; workers lost: {len(lost)} ({'; '.join(dict.fromkeys(lost))}). {as_in_plain_training(results)}"
    )


def as_in_plain_training(results: Mapping[str, Measured]) -> str:
    """Whether a run with a cut has the accuracies of full copies: both visit partitions in an order by seed alone."""
    if "copies" not in results:
        return ""
    pairs = zip(results["hopping-cut"].curves, results["copies"].curves, strict=True)
    same = all(cut[: len(plain)] == plain for cut, plain in pairs)
    return f"Accuracies are {'as' if same else 'OTHER THAN'} in plain training."
