"""What training a model takes, whatever the device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResourceEstimate:
    """Parameters and floating-point operations of a model."""

    #: Bytes of all parameters that are trained.
    parameters: int
    #: Operations for each row, forward and backward.
    flops: float
    #: The part of the forward operations that lies on the longest path; 1 for a model without branches.
    longest: float
