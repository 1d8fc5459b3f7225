"""Parameter servers: members compute gradients; all or some serve parts of the weights, which they alone update.

For each update, a member sends the gradients of every parameter to the member that serves it, and gets the new weights
back. Only the server of a parameter has the optimizer's state for it. Updates are synchronous: a server waits for the
gradients of all members, and adds them up. Members that only serve have no share of any batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import distributed

from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch import checkpoint
from hopfleet.frameworks.torch.parallel.ddp import warn_of_batch_norm
from hopfleet.frameworks.torch.parallel.strategy import Share, SpreadTrial, Strategy, TeamSteps
from hopfleet.frameworks.torch.parallel.wire import Value, moved
from hopfleet.frameworks.torch.steps import rows_of

Parameters = list[torch.nn.Parameter]


class _ServerSteps(TeamSteps):
    def __init__(self, trial: SpreadTrial, served: list[Parameters]) -> None:
        super().__init__(trial)
        self._served, self._rank = served, trial.team.rank

    def _backward(self, batch: Batch, *, clear: bool = True) -> torch.Tensor:
        if batch:
            return super()._backward(batch, clear=clear)
        # This member only serves: it has no gradients to add, and no loss.
        if clear and not self.waiting:
            self._clear_gradients()
        self.waiting += 1
        return torch.zeros((), device=self._trial.device)

    def update(self) -> None:
        for server, parameters in enumerate(self._served):
            for some in _by_type(parameters):
                self._send_gradients(some, server)
        super().update()

    @torch.no_grad()
    def _send_gradients(self, parameters: Parameters, server: int) -> None:
        """Add up the gradients of all members at a server. A gradient that no member has stays absent."""
        first = parameters[0]
        present = torch.tensor([float(p.grad is not None) for p in parameters], dtype=first.dtype, device=first.device)
        pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([present, *(piece.reshape(-1) for piece in pieces)])
        distributed.reduce(flat, server)
        parts = torch.split(flat, [len(parameters), *(piece.numel() for piece in pieces)])
        for parameter, has, part in zip(parameters, parts[0].tolist(), parts[1:], strict=True):
            # Optimizers pass over parameters without a gradient, so each member updates those that it serves.
            parameter.grad = part.view_as(parameter) if has and server == self._rank else None

    def _limit_norm(self, most: float) -> torch.Tensor:
        own = [p.grad for p in self._served[self._rank] if p.grad is not None]
        square = torch.zeros((), dtype=torch.float64, device=self._trial.device)
        if own:
            square += torch.nn.utils.get_total_norm(own).double() ** 2
        distributed.all_reduce(square)
        norm = square.sqrt()
        torch.nn.utils.clip_grads_with_norm_(self._served[self._rank], most, norm)
        return norm

    def _step_optimizers(self) -> None:
        super()._step_optimizers()
        for server, parameters in enumerate(self._served):
            for some in _by_type(parameters):
                _send_weights(some, server)


class Ps(Strategy):
    """Synchronous parameter servers, one on each member or, with a number of ``servers``, on the first ones.

    The last members, if there are any that ``only_serve``, are further servers.
    """

    on_host = False
    lockstep = False
    spans_nodes = True
    unsupported = (*Strategy.unsupported, "sparse")

    def __init__(self, servers: int = 0, only_serve: int = 0) -> None:
        self._servers, self._only_serve = servers, only_serve
        self.fewest = max(Strategy.fewest, max(1, servers) + only_serve)

    def spread(self, trial: SpreadTrial) -> None:
        warn_of_batch_norm(trial)
        size, first = trial.team.size, self._servers
        if not first and not self._only_serve:
            first = size
        parts = _divided([p for p in trial.model.parameters() if p.requires_grad], first + self._only_serve)
        self._served = [*parts[:first], *([] for _ in range(size - len(parts))), *parts[first:]]
        self._forget_others(trial)

    def deal(self, batches: Iterable[Batch], size: int) -> Iterator[Sequence[Share | None]]:
        for batch in batches:
            idle = Share({}, rows_of(batch), 0.0)
            yield [*self.shares(batch, size - self._only_serve), *[idle] * self._only_serve]

    def rounds(self, batches: Iterable[Batch], size: int) -> Iterator[list[Share | None]]:
        for dealt in super().rounds(batches, size - self._only_serve):
            yield [*dealt, *[None] * self._only_serve]

    def steps(self, trial: SpreadTrial) -> TeamSteps:
        return _ServerSteps(trial, self._served)

    def collect(self, trial: SpreadTrial) -> checkpoint.State:
        """Bring the optimizers' states of all servers to the first member for a moment."""
        parameters: list[torch.Tensor] = list(trial.model.parameters())
        numbers = {parameter: number for number, parameter in enumerate(parameters)}
        own = [
            {numbers[parameter]: _on_host(state) for parameter, state in optimizer.state.items()}
            for optimizer in trial.optimizers
        ]
        found: list[Value] | None = [None] * trial.team.size if trial.team.rank == 0 else None
        distributed.gather_object(own, found)
        if found is None:
            return {}
        for states in found[1:]:
            for optimizer, of_server in zip(trial.optimizers, states, strict=True):
                for number, state in of_server.items():
                    optimizer.state[parameters[number]] = {
                        key: value if _counts(value) else moved(value, trial.device) for key, value in state.items()
                    }
        for optimizer in trial.optimizers:
            _sort(optimizer)
        state = checkpoint.state_of(trial)
        self._forget_others(trial)
        return state

    def _forget_others(self, trial: SpreadTrial) -> None:
        """Drop the optimizers' states of parameters that other members serve."""
        own = set(self._served[trial.team.rank])
        for optimizer in trial.optimizers:
            for parameter in [one for one in optimizer.state if one not in own]:
                del optimizer.state[parameter]


def _divided(parameters: Parameters, size: int) -> list[Parameters]:
    """Divide parameters among servers: the largest first, each to the server that has the fewest numbers so far."""
    served: list[Parameters] = [[] for _ in range(size)]
    loads = [0] * size
    for parameter in sorted(parameters, key=lambda one: -one.numel()):
        server = loads.index(min(loads))
        served[server].append(parameter)
        loads[server] += parameter.numel()
    return served


def _by_type(parameters: Parameters) -> Iterator[Parameters]:
    kinds: dict[torch.dtype, Parameters] = {}
    for parameter in parameters:
        kinds.setdefault(parameter.dtype, []).append(parameter)
    yield from kinds.values()


@torch.no_grad()
def _send_weights(parameters: Parameters, server: int) -> None:
    """Give all members the weights of their server."""
    flat = torch.cat([parameter.reshape(-1) for parameter in parameters])
    distributed.broadcast(flat, server)
    for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.copy_(part.view_as(parameter))


def _on_host(state: dict[str, Value]) -> dict[str, Value]:
    return {key: value.cpu() if torch.is_tensor(value) else value for key, value in state.items()}


def _counts(value: Value) -> bool:
    """Whether a part of an optimizer's state is a counter, which stays on the host."""
    return torch.is_tensor(value) and not value.ndim


def _sort(optimizer: torch.optim.Optimizer) -> None:
    """Put the states of an optimizer into the order of its parameters, as on one device."""
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = dict(optimizer.state)
    optimizer.state.clear()
    optimizer.state.update({parameter: states[parameter] for parameter in order if parameter in states})
