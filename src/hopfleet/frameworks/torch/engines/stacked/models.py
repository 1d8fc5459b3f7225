"""Stacked models: which trials can be stacked."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NoReturn

import torch

from hopfleet.frameworks.torch import _compat
from hopfleet.frameworks.torch.engines.alike import traits
from hopfleet.frameworks.torch.engines.stacked.layout import trained
from hopfleet.frameworks.torch.engines.stacked.updates import ALIKE, UPDATES, state_names
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.step_log import REASON

LARGE = 1 << 22
"""Bytes. On a CPU, a model with more weights than this is not stacked: it has little overhead to share, and the
gradients and activations of all members would take memory at the same time."""


class Unstackable(Exception):
    """The reason why a member cannot be stacked."""


class Absent:
    """What stands for the optimizers and schedules of stacked trials in their loss: each has its own."""

    def __getattr__(self, name: str) -> NoReturn:
        raise Unstackable("the loss uses the optimizer, the schedule or the scaler of its trial")


def kind_of(session: TorchSession) -> Hashable:
    """Return what members have in common that can be stacked with each other. Raises Unstackable."""
    if len(session.optimizers) != 1 or type(session.optimizers[0]) not in UPDATES:
        names = [type(one).__name__ for one in session.optimizers] or ["none"]
        raise Unstackable(f"the optimizer is {', '.join(names)}")
    if _compat.has_step_hooks(session.optimizers[0], session.updates[0]):
        raise Unstackable("the optimizer has step hooks")
    if session.logs:
        raise Unstackable(REASON)
    if session.scaler is not None:
        raise Unstackable("a gradient scaler reads values")
    if not session.options.plain_but_clipped:
        raise Unstackable("the task accumulates gradients, averages weights or uses another precision")
    if session.device.type == "cuda" and any(isinstance(one, torch.nn.RNNBase) for one in session.model.modules()):
        raise Unstackable("recurrent layers of cuDNN compute one model at a time")
    held = {id(weight) for group in session.optimizers[0].param_groups for weight in trained(group)}
    others = any(weight.requires_grad and id(weight) not in held for weight in session.model.parameters())
    if session.options.clip_norm is not None and others:
        raise Unstackable("the limit of the gradients' norm is about weights that the optimizer does not hold")
    groups = session.optimizers[0].param_groups
    if session.large and any(len(trained(group)) < len(group["params"]) for group in groups):
        raise Unstackable("the model is large, and its optimizer holds frozen weights; give it those that are trained")
    if not all(map(trained, groups)):
        raise Unstackable("a group of the optimizer has frozen weights alone")
    places = [weight.data_ptr() for weight in session.model.parameters() if id(weight) in held and weight.numel()]
    if len(set(places)) < len(places):
        raise Unstackable("two parameters use the same memory; let them be one parameter")
    types = {weight.dtype for weight in session.model.parameters() if id(weight) in held}
    if len(types) > 1:
        raise Unstackable("parameters have several types")
    fused = isinstance(session.optimizers[0], _compat.FUSED) and not session.optimizers[0].defaults["maximize"]
    if types & {torch.float16, torch.bfloat16} and not fused:
        raise Unstackable("the settings of the optimizer do not fit into the type of the parameters")
    weights = sum(weight.numel() * weight.element_size() for weight in session.model.parameters())
    if session.device.type == "cpu" and weights > LARGE and not session.options.compile:
        raise Unstackable("models are large, and stacking large models on a CPU saves little time")
    return form(session), session.counters["units"] == 0


def form(session: TorchSession, *, widths: bool = True) -> str:
    """Return what members have in common that are computed alike, but for values of the configuration.

    Without ``widths``, their linear layers may have different numbers of inputs and outputs.
    """
    optimizer = session.optimizers[0]
    layers = [
        (name, type(module), *(traits(module) if widths or type(module) is not torch.nn.Linear else ()))
        for name, module in session.model.named_modules()
    ]
    names = {id(value): name for name, value in session.model.named_parameters()}
    tensors = [*session.model.named_parameters(), *session.model.named_buffers()]
    shapes = [
        (name, tuple(value.shape) if widths else value.ndim, value.dtype, value.requires_grad)
        for name, value in tensors
    ]
    common = sorted((one.name, one.tensor.data_ptr()) for one in session.shared)
    groups = [
        (
            [names.get(id(p)) for p in group["params"]],
            [bool(group.get(flag)) for flag in ALIKE],
            state_names(optimizer, group),
        )
        for group in optimizer.param_groups
    ]
    return str(
        (layers, shapes, common, type(optimizer), groups, session.options, session.hooks.lr_step, session.device)
    )


def constants(sessions: Sequence[TorchSession]) -> dict[str, torch.Tensor]:
    """Return copies of buffers that all members have in common: whole numbers that no version keeps, say positions."""
    models = [dict(session.model.named_modules()) for session in sessions]
    found: dict[str, torch.Tensor] = {}
    for path, module in models[0].items():
        for name in _compat.unsaved_buffers(module):
            first, *others = (getattr(model[path], name) for model in models)
            exact = not first.is_floating_point() and not first.is_complex()
            if exact and all(torch.equal(first, other) for other in others):
                found[f"{path}.{name}" if path else name] = first.clone()
    return found


def family(session: TorchSession) -> str:
    """Return what members have in common that can be stacked if the smaller ones are padded with zeros.

    Empty if a member cannot be padded: it must be a sequence of linear layers and others that leave zeros as they are.
    So what is added to a layer has no effect, has no gradient, and stays zero.
    """
    modules, optimizer = list(session.model.modules()), session.optimizers[0]
    linear = [one for one in modules if type(one) is torch.nn.Linear]
    weights = [weight for one in linear for weight in one.parameters()]
    once = sum(len(_compat.children(one)) for one in modules) == len(modules) - 1 and len(set(weights)) == len(weights)
    held = {weight for group in optimizer.param_groups for weight in trained(group)}
    if not linear or not once or held != set(weights):
        return ""
    if any(type(one) not in GROWING or _compat.has_hooks(one) for one in modules):
        return ""
    return f"{linear[0].in_features} {linear[-1].out_features} {form(session, widths=False)}"


GROWING = (
    *(torch.nn.Sequential, torch.nn.Linear, torch.nn.Identity, torch.nn.Dropout, torch.nn.ReLU, torch.nn.LeakyReLU),
    *(torch.nn.ELU, torch.nn.GELU, torch.nn.SiLU, torch.nn.Tanh, torch.nn.ReLU6, torch.nn.Softsign),
)
"""Layers that may get more inputs and outputs: zeros stay zeros in them."""
