"""The values of options, as types: editors list them, type checkers refuse others, and checks read them at run time.

Where packages may register names of their own, functions take ``str`` beside the names that come with Hopfleet.
"""

from __future__ import annotations

from typing import Literal

Auto = Literal["auto"]
Concurrency = int | Literal["workers"] | None

Mode = Literal["min", "max"]
Order = Literal["open", "fixed"]
Fuse = Literal["exact", "fast", "off"]
AllFailed = Literal["raise", "return"]
Device = Literal["auto", "cpu", "cuda", "mps"]

BackendName = Literal["inline", "local", "ray", "simulated"]
ParallelismName = Literal["auto", "single"]
PolicyName = Literal[
    "auto",
    "exact",
    "fleet",
    "longest-remaining",
    "match-reserve",
    "monte-carlo",
    "nearly-done",
    "portfolio",
    "random",
    "vector-rearrangement",
]
RuleName = Literal["median", "patience"]
SearchName = Literal[
    "asha", "cmaes", "freeze-thaw", "gp", "grid", "halving", "hyperband", "nsga2", "pbt", "random", "tpe"
]
StoreName = Literal["local"]
TrackerName = Literal["csv", "jsonl", "log", "mlflow", "otel", "tensorboard", "wandb"]

Chart = Literal["curves", "steps", "gantt", "parallel", "importance", "rungs", "lineage", "pareto"]

RowsThatFail = Literal["raise", "skip", "null"]
"""What is done about rows to predict that fail: an error, no prediction, or a missing one."""
