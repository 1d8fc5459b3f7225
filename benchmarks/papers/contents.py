"""Every table and figure of the four papers: what it shows, the paper's number, and our row or why there is none."""

from __future__ import annotations

from typing import NamedTuple

CEREBRO, PLATFORM, FLEET, DIKE = "Cerebro", "The Cerebro platform", "FLEET", "Dike"

DRAWING, NOTATION = "a drawing: nothing is measured", "notation: nothing is measured"
SETUP = "describes the paper's experiment: nothing is measured"
CLOUD = "ImageNet, COCO and 8 nodes with T4 GPUs are not at hand"


class Entry(NamedTuple):
    """A table or a figure. ``row`` begins the row that repeats it; without one, ``reason`` says why."""

    paper: str
    name: str
    shows: str
    published: str = ""
    row: str = ""
    reason: str = ""


ENTRIES = (
    Entry(CEREBRO, "Figure 1", "task and data parallelism, united", reason=DRAWING),
    Entry(
        CEREBRO,
        "Figure 2",
        "paradigms by communication and storage",
        reason="a sketch without scales; table 2 and figure 7 have both axes in numbers",
    ),
    Entry(CEREBRO, "Figure 3", "systems by desiderata", reason="a table of properties: nothing is measured"),
    Entry(CEREBRO, "Figure 4", "the architecture", reason=DRAWING),
    Entry(CEREBRO, "Figure 5", "a workload as tasks and with hops", "9 and 7 units", "makespan of hopping"),
    Entry(CEREBRO, "Figure 6", "schedulers: makespans and times", "random is best", "heterogeneous, 16 configurations"),
    Entry(CEREBRO, "Figure 7A", "times, utilization and storage of systems", "3.06 (Horovod)", "time of Horovod"),
    Entry(CEREBRO, "Figure 7B", "learning curves of systems", "Cerebro and Celery lead", "best accuracy"),
    Entry(CEREBRO, "Figure 8A", "speed-ups of Cerebro and Horovod", "linear", "speed-up on 8 workers"),
    Entry(CEREBRO, "Figure 8B", "two workers fail and return", "goes on", "two of 8 workers"),
    Entry(CEREBRO, "Figure 9A", "times by batch size", "2 (Horovod, 32)", "batches of 32: time of all-reduce"),
    Entry(CEREBRO, "Figure 9B", "validation errors by batch size", "best at 32", "the batch size with the lowest"),
    Entry(CEREBRO, "Figure 10", "remote storage: bytes read", "over 10", "remote storage"),
    Entry(CEREBRO, "Figure 11", "distributed storage: bytes by replication", "100", "distributed storage"),
    Entry(CEREBRO, "Figure 12", "HyperOpt: time and errors", "1.23", "32 configurations, 10 epochs"),
    Entry(CEREBRO, "Figure 13", "ASHA: configurations and errors", "1.24 (83 / 67)", "configurations that ASHA"),
    Entry(CEREBRO, "Table 1", "notation", reason=NOTATION),
    Entry(CEREBRO, "Table 2", "bytes that paradigms move", "4 TB (hopping)", "hopping, the paper's example"),
    Entry(CEREBRO, "Table 3", "notation of the MILP", reason=NOTATION),
    Entry(CEREBRO, "Table 4", "data sets", reason=SETUP),
    Entry(CEREBRO, "Table 5", "workloads", reason=SETUP),
    Entry(CEREBRO, "Table 6", "the space of HyperOpt and ASHA", reason=SETUP),
    Entry(PLATFORM, "Figure 1.1", "systems by data size and model size", reason=DRAWING),
    Entry(PLATFORM, "Figure 2.1", "the pipeline of deep learning", reason=DRAWING),
    Entry(PLATFORM, "Figure 3.1", "the architecture", reason=DRAWING),
    Entry(PLATFORM, "Figure 3.2", "what users implement", reason=DRAWING),
    Entry(PLATFORM, "Figure 3.3", "the start of a workload", reason=DRAWING),
    Entry(PLATFORM, "Figure 3.4", "the flow of data in pre-processing", reason=DRAWING),
    Entry(PLATFORM, "Figure 3.5", "the flow of data in training", reason=DRAWING),
    Entry(PLATFORM, "Figure 3.6", "the flow of data in trial runs", reason=DRAWING),
    Entry(PLATFORM, "Figure 3.7", "a notebook", reason="a screenshot: nothing is measured"),
    Entry(PLATFORM, "Figure 4.1", "6 models on 8 nodes of 2 GPUs", "7,967 / 15,926 s", "figure 4.1"),
    Entry(PLATFORM, "Figure 4.2", "6 models on nodes of 4, 2 and 2 GPUs", "5,255 / 7,780 s", "figure 4.2"),
    Entry(PLATFORM, "Figure 4.3", "10 models on nodes of 4, 2 and 2 GPUs", "8,995 / 10,172 s", "figure 4.3"),
    Entry(PLATFORM, "Figure 5.1", "BLEU-4 on COCO, 8 configurations", "8 h 50 min", reason=CLOUD),
    Entry(PLATFORM, "Figure 5.2", "losses of units on COCO", "", reason=CLOUD),
    Entry(PLATFORM, "Figure 5.3", "top-5 training accuracy of units on ImageNet", "", reason=CLOUD),
    Entry(PLATFORM, "Figure 5.4", "top-5 accuracy on ImageNet, 16 configurations", "0.017 to 0.912", reason=CLOUD),
    Entry(PLATFORM, "Table 1.1", "systems by desiderata", reason="a table of properties: nothing is measured"),
    Entry(PLATFORM, "Table 4.1", "notation of the MILP", reason=NOTATION),
    Entry(PLATFORM, "Table 5.1", "the space of the COCO experiment", reason=SETUP),
    Entry(PLATFORM, "Table 5.2", "the space of the ImageNet experiment", reason=SETUP),
    Entry(FLEET, "Figure 1", "a training pipeline", reason=DRAWING),
    Entry(FLEET, "Figure 2", "data-parallel training", reason=DRAWING),
    Entry(FLEET, "Figure 3", "the pipeline of an ensemble", reason=DRAWING),
    Entry(FLEET, "Figure 4", "the flow of data", reason=DRAWING),
    Entry(FLEET, "Figure 5", "speed-ups on 20 to 160 GPUs", "up to 1.92", "speed-up of FLEET-G on 160 GPUs"),
    Entry(FLEET, "Figure 6", "waiting time per GPU", "least with FLEET-G", "80 GPUs: waiting per GPU, FLEET-G"),
    Entry(FLEET, "Figure 7", "rates on one GPU", "21 to 176 images/s", "rates on one GPU"),
    Entry(FLEET, "Figure 8", "rates and epochs by model size", "epochs: no correlation", "correlation"),
    Entry(FLEET, "Figure 9", "rates by the number of GPUs", "less than linear", "rate on 8 GPUs"),
    Entry(FLEET, "Table 1", "the jobs of processes", reason=SETUP),
    Entry(FLEET, "Table 2", "notation", reason=NOTATION),
    Entry(FLEET, "Table 3", "lengths of networks and flotillas", "10,372 s", "table 3, one network per GPU"),
    Entry(FLEET, "Table 4", "totals and overheads", "11,825 s (160 GPUs)", "table 4, 160 GPUs: seconds"),
    Entry(DIKE, "Figure 1", "the architecture", reason=DRAWING),
    Entry(DIKE, "Figure 2", "a deployment on Mesos", reason=DRAWING),
    Entry(DIKE, "Figure 3", "the process in detail", reason=DRAWING),
    Entry(DIKE, "Figure 4A", "models on 5, 10 and 20 instances", "95% to 100%", "figure 4A, ResNet-50, 10 instances"),
    Entry(DIKE, "Figure 4B", "sizes of input", "not affected", "figure 4B"),
    Entry(DIKE, "Figure 4C", "instances without GPUs", "servers go there", "figure 4C, 2 nodes with GPUs and 1"),
    Entry(DIKE, "Table 1", "what is manual in each approach", reason="a table of properties: nothing is measured"),
    Entry(DIKE, "Table 2", "frameworks", reason="a table of properties: nothing is measured"),
)
