"""Training rates of networks by the number of GPUs: a few are profiled, the others follow from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hopfleet.errors import UsageError


def points_to_profile(alone: Sequence[float], gpus_per_node: int) -> int:
    """Return the largest number of GPUs to profile networks on, given their rates on one GPU.

    The slowest network needs about this many to keep pace with the fastest; two nodes show what the network between
    them costs.
    """
    return max(math.ceil(max(alone) / min(alone)), 2 * gpus_per_node)


@dataclass(frozen=True, slots=True)
class Rates:
    """The training rates of one network, in rows per second, on 1, 2, 3 ... GPUs."""

    name: str
    #: Profiled rates; the first is that of one GPU.
    profiled: tuple[float, ...]
    #: The number of GPUs from whose rate those of more GPUs follow; by default, the last that was profiled.
    base: int = 0

    def __post_init__(self) -> None:
        if not self.profiled:
            raise UsageError(f"network {self.name} has no rates: profile it on one GPU at least")
        for gpus, rate in enumerate(self.profiled, 1):
            if not 0 < rate < math.inf:
                raise UsageError(
                    f"network {self.name}: {rate} rows/s on {gpus} GPUs: must be finite and above 0; profile it again"
                )
        for gpus, (fewer, more) in enumerate(zip(self.profiled, self.profiled[1:], strict=False), 2):
            if more <= fewer:
                raise UsageError(
                    f"network {self.name}: {more:g} rows/s on {gpus} GPUs, {fewer:g} on {gpus - 1}: rates must grow "
                    f"with the number of GPUs; give the rates of up to {gpus - 1} GPUs, which are best"
                )
        if not 0 <= self.base <= len(self.profiled):
            raise UsageError(
                f"network {self.name}: base={self.base}: must be one of the {len(self.profiled)} profiled points"
            )

    def __call__(self, gpus: int) -> float:
        """Return the rate on a number of GPUs.

        Beyond the profiled points this is FLEET's equation 5: efficiency goes on falling by the same factor with each
        GPU. Where that would make more GPUs slower than fewer, the best rate of fewer stays.
        """
        if gpus <= len(self.profiled):
            return self.profiled[gpus - 1]
        base = self.base or len(self.profiled)
        if base == 1:
            return self.profiled[-1]
        here, before = self.profiled[base - 1], self.profiled[base - 2]
        factor = min(1.0, here / before * (base - 1) / base)
        # m · factor^m is largest at m = -1 / ln(factor).
        most = gpus if factor == 1.0 else min(gpus, max(base, round(-1.0 / math.log(factor))))
        return max(self.profiled[-1], most * here / base * factor ** (most - base))

    def up_to(self, gpus: int) -> tuple[float, ...]:
        """Return the rates on 1 to ``gpus`` GPUs."""
        return tuple(self(count) for count in range(1, gpus + 1))
