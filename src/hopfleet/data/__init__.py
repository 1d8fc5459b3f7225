"""Partitioned data sets: creating them from rows of any source, and reading them as batches."""

from __future__ import annotations

from hopfleet.data.columns import Column, Kind
from hopfleet.data.dataset import Dataset, open_dataset
from hopfleet.data.partitioning import partition
from hopfleet.data.prefetching import prefetch

__all__ = ["Column", "Dataset", "Kind", "open_dataset", "partition", "prefetch"]
