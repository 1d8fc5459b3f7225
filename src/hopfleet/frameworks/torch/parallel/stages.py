"""Cuts a model into the stages of a pipeline, by tracing the code between its blocks.

The forward code of a model is traced with each block as one operation. The traced operations are divided in their
order; every stage passes on the values that later stages need.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx, nn

from hopfleet.errors import TaskError, describe
from hopfleet.frameworks.torch.parallel.blocks import Block, weight
from hopfleet.frameworks.torch.parallel.wire import Value


class _Tracer(fx.Tracer):
    """Traces the code of modules that contain blocks; all other modules are operations of their own."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        super().__init__()
        self._blocks = {id(block.module): block.name for block in blocks}
        #: The name of the block that was called last.
        self.last = ""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        self.last = self._blocks.get(id(m), self.last)
        return id(m) in self._blocks or not any(id(module) in self._blocks for module in m.modules())


def cut(model: nn.Module, blocks: Sequence[Block], count: int) -> list[nn.Module]:
    """Return ``count`` stages of a model, of about equal size. They share the modules and parameters of the model.

    Each stage takes the values that the stage before returns. Raise TaskError if the model cannot be cut.
    """
    if len(blocks) < count:
        names = ", ".join(block.name or type(block.module).__name__ for block in blocks)
        raise TaskError(
            f"the model has {len(blocks)} block(s) ({names}) for {count} stages: use fewer devices, or name more "
            "blocks in blocks(self, model)"
        )
    tracer = _Tracer(blocks)
    try:
        nodes = list(tracer.trace(model).nodes)
    except Exception as error:
        where = f"after block {tracer.last!r}" if tracer.last else "before its blocks"
        raise TaskError(
            f"the code of {type(model).__name__} {where} cannot be traced, so the pipeline cannot cut it "
            f"({describe(error)}): build the model as an nn.Sequential of blocks, or use another strategy"
        ) from error
    stage_of = _assigned(nodes, _starts(blocks, count), count)
    inside = [{node for node in nodes if stage_of[node] == number} for number in range(count)]
    _check_parameters(model, inside)
    return [_stage(model, nodes, stage_of, number, last=number == count - 1) for number in range(count)]


def _starts(blocks: Sequence[Block], count: int) -> list[str]:
    """Return the name of the block that each stage but the first begins with."""
    sizes = [weight(block.module) for block in blocks]
    total, done, starts = sum(sizes), 0, list[str]()
    for number, (block, size) in enumerate(zip(blocks, sizes, strict=True)):
        left, missing = len(blocks) - number, count - 1 - len(starts)
        enough = done + size / 2 >= total * (len(starts) + 1) / count
        if number and missing and (enough or left == missing):
            starts.append(block.name)
        done += size
    return starts


def _assigned(nodes: Sequence[fx.Node], starts: Sequence[str], count: int) -> dict[fx.Node, int]:
    found: dict[fx.Node, int] = {}
    stage = 0
    for node in nodes:
        if stage < len(starts) and node.op == "call_module" and node.target == starts[stage]:
            stage += 1
        found[node] = stage
    if stage < len(starts):
        raise TaskError(
            f"block {starts[stage]!r} is not called in the order of the blocks: the pipeline cannot cut there"
        )
    # Parameters that the code reads by itself belong to the first stage that needs them.
    for node in nodes:
        if node.op == "get_attr":
            found[node] = min((found[user] for user in node.users), default=0)
    return found


def _check_parameters(model: nn.Module, inside: Sequence[set[fx.Node]]) -> None:
    """Raise TaskError if two stages use the same parameter."""
    owner: dict[int, int] = {}
    for number, some in enumerate(inside):
        for node in some:
            if node.op == "call_module":
                parameters = dict(model.get_submodule(str(node.target)).named_parameters(prefix=str(node.target)))
            elif node.op == "get_attr":
                parameters = {str(node.target): _attribute(model, str(node.target))}
            else:
                continue
            for name, parameter in parameters.items():
                if owner.setdefault(id(parameter), number) != number:
                    raise TaskError(
                        f"{name!r} is used in two stages: a pipeline cannot cut models with tied weights; name blocks "
                        "that keep them together in blocks(self, model), or use 'ddp' or 'fsdp'"
                    )


def _attribute(model: nn.Module, name: str) -> Value:
    path, _, last = name.rpartition(".")
    return getattr(model.get_submodule(path), last)


def _stage(
    model: nn.Module, nodes: Sequence[fx.Node], stage_of: dict[fx.Node, int], number: int, *, last: bool
) -> nn.Module:
    """Return the part of the traced code that belongs to one stage."""

    def crossing(border: int) -> list[fx.Node]:
        """Return the values that are made before a border between stages and needed after it."""
        return [
            node
            for node in nodes
            if stage_of[node] < border and node.op != "output" and any(stage_of[user] >= border for user in node.users)
        ]

    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    if number:
        for node in crossing(number):
            known[node] = graph.placeholder(node.name)
    for node in nodes:
        if stage_of[node] == number and node.op != "output":
            known[node] = graph.node_copy(node, lambda one: known[one])
    if last:
        output = next(node for node in nodes if node.op == "output")
        graph.output(fx.map_arg(output.args[0], lambda one: known[one]))
    else:
        passed = tuple(known[node] for node in crossing(number + 1))
        graph.output(passed[0] if len(passed) == 1 else passed)
    graph.lint()
    return fx.GraphModule(model, graph)
