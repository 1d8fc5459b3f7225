"""The work that an experiment is expected to be, as its search knows it before the first unit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

Bound = Literal["exactly", "about", "at most"]


@dataclass(frozen=True, slots=True)
class Expectation:
    """The epochs of all trials together, and how exact their number is."""

    epochs: int | None  #: None if the search has no end of its own
    bound: Bound = "exactly"
    capped: bool = False  #: whether a budget ends the experiment after these epochs
    seconds: float | None = None  #: the time after which a budget ends the experiment

    def plus(self, epochs: int) -> Self:
        """Return the expectation with further epochs."""
        return self if self.epochs is None else replace(self, epochs=self.epochs + epochs)

    def or_less(self) -> Self:
        """Return the expectation if the experiment may end earlier."""
        return self if self.bound == "about" else replace(self, bound="at most")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, stored: Any) -> Expectation | None:
        """Return what a definition stores; None for a definition of an earlier release or a damaged one."""
        match stored:
            case {"epochs": int() | None as epochs, "bound": "exactly" | "about" | "at most" as bound, **rest}:
                seconds = rest.get("seconds")
                limit = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None
                return Expectation(epochs, bound, rest.get("capped") is True, limit)
        return None
