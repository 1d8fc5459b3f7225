"""Partitioned data sets: creating them from rows of any source, and reading them as batches."""

from __future__ import annotations

from hopfleet.data.columns import Column, Kind
from hopfleet.data.dataset import Dataset, open_dataset
from hopfleet.data.live import Live, live
from hopfleet.data.padding import pad
from hopfleet.data.partitioning import partition
from hopfleet.data.prefetching import prefetch

__all__ = ["Column", "Dataset", "Kind", "Live", "live", "open_dataset", "pad", "partition", "prefetch"]
