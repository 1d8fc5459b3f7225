"""The data sets of a LightningDataModule. What its loaders do besides making batches of rows is refused by name."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler, default_collate

from hopfleet.errors import UsageError
from hopfleet.frameworks.lightning.refusals import overrides

REPEATS = "repeat or weight rows in the data set itself, or weight the loss by a column of the data"


def data_of(module: Any) -> dict[str, Any]:
    """Return the data sets of a module with loaders as arguments of an experiment: ``train`` and ``valid``."""
    module.prepare_data()
    module.setup("fit")
    found = {"train": _dataset("train_dataloader", module.train_dataloader())}
    if overrides(module, "val_dataloader", "DataHooks") and (valid := module.val_dataloader()):
        found["valid"] = _dataset("val_dataloader", valid)
    return found


def _dataset(hook: str, loader: Any) -> Any:
    """Return the data set of a loader. Raises UsageError for anything but one loader that takes each row once."""
    loaders = loader if isinstance(loader, list | tuple) else [loader]
    if len(loaders) != 1:
        raise UsageError(
            f"{hook}() returned {len(loaders)} loaders: must be one; join their data sets with "
            "torch.utils.data.ConcatDataset"
        )
    (loader,) = loaders
    if not hasattr(loader, "dataset"):
        raise UsageError(
            f"{hook}() returned a {type(loader).__name__} without a data set: return a DataLoader, or give data to "
            "the experiment yourself"
        )
    if refusal := _refusal(loader):
        raise UsageError(f"{hook}() returned a loader with {refusal}")
    return loader.dataset


def _refusal(loader: Any) -> str:
    """Return the argument of a loader that an experiment cannot follow, with the remedy; empty if there is none."""
    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(batches, "sampler", getattr(loader, "sampler", None))
    if hasattr(loader, "batch_sampler") and batches is None:
        return (
            "batch_size=None: the experiment makes the batches, of batch_size=...; let the data set return rows, and "
            "leave out batch_size=None"
        )
    if batches is not None and type(batches) is not BatchSampler:
        return (
            f"batch_sampler={type(batches).__name__}: the experiment makes the batches, in an order of its own for "
            "each epoch; leave it out, and set batch_size=... of the experiment"
        )
    if type(sampler) is RandomSampler and (sampler.replacement or sampler.num_samples != len(loader.dataset)):
        return (
            f"sampler=RandomSampler(replacement={sampler.replacement}, num_samples={sampler.num_samples}): each epoch "
            f"takes all {len(loader.dataset)} rows once, in an order of its own; {REPEATS}"
        )
    streams = isinstance(loader.dataset, IterableDataset)  # its sampler only counts
    if not streams and sampler is not None and type(sampler) not in (RandomSampler, SequentialSampler):
        return (
            f"sampler={type(sampler).__name__}: each epoch takes all rows once, in an order of its own; to take some "
            f"rows, pass torch.utils.data.Subset(dataset, rows) to the loader; otherwise {REPEATS}"
        )
    if getattr(batches, "drop_last", getattr(loader, "drop_last", False)):
        return (
            "drop_last=True: leave it out, and set worker_options=hop.WorkerOptions(drop_last=True) of the experiment, "
            "which leaves out the short batch of each unit"
        )
    if (collate := getattr(loader, "collate_fn", default_collate)) is not default_collate:
        name = getattr(collate, "__name__", type(collate).__name__)
        return (
            f"collate_fn={name}: the experiment makes the batches; give it hop.live(dataset, collate={name}) as train "
            "and valid"
        )
    if (prepare := getattr(loader, "worker_init_fn", None)) is not None:
        name = getattr(prepare, "__name__", type(prepare).__name__)
        return f"worker_init_fn={name}: no worker of the loader is started; prepare the data set in its __init__()"
    return ""
