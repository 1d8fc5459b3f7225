"""Tasks as people write them, one for each feature of PyTorch that engines must get right."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import hopfleet as hop
from tests.helpers.feature_runs import CLASSES, WIDTH, WORDS
from tests.helpers.stacked_tasks import DEVICE

KIND = DEVICE.split(":")[0]


class Featured(hop.TorchTask):
    """A task without features: a perceptron."""

    def build(self, config: Mapping[str, Any]) -> Any:
        model = self.model(config)
        return model, self.optimizer_of(model, config)

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))

    def optimizer_of(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(model.parameters(), lr=config["lr"], fused=config.get("fused"))

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return functional.cross_entropy(model(batch["x"]), batch["y"])


# ---------------------------------------------------------------------------------------------------------- autocast


class Autocast(Featured):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        with torch.autocast(KIND, torch.bfloat16):
            return super().loss(model, batch)


class AutocastLayerNorm(Autocast):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.LayerNorm(WIDTH, elementwise_affine=False),
            nn.Linear(WIDTH, CLASSES),
        )  # fmt: skip


class AutocastConv(Autocast):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES),
        )  # fmt: skip


class Attending(nn.Module):
    """Embeddings, attention, norms and a head, with an operation of each kind that stacks have rules for."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.queries, self.rate = nn.Linear(WIDTH, 3 * WIDTH), rate
        self.bias = nn.Parameter(torch.zeros(CLASSES))
        self.head = nn.Parameter(torch.randn(WIDTH, CLASSES) / 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        query, key, value = (
            self.queries(self.norm(x)).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4).unbind(0)
        )
        # A query in single precision, as rotary embeddings leave it.
        found = functional.scaled_dot_product_attention(
            query.float() if x.dtype != torch.float64 else query, key, value
        )
        found = functional.dropout(found.transpose(1, 2).flatten(2), self.rate, self.training)
        return torch.addmm(self.bias, (x + found).mean(1), self.head)


class AutocastAttention(Autocast):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return Attending()

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        with torch.autocast(KIND, torch.bfloat16):
            return functional.cross_entropy(model(batch["words"]), batch["y"])


class Encoder(Autocast):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation=functional.gelu)
        return nn.Sequential(
            nn.Unflatten(1, (2, 8)), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Flatten(),
            nn.Linear(16, CLASSES),
        )  # fmt: skip


class Deep(Autocast):
    """Layers whose activations stop some rows, which depends on the last bits."""

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(6)]
        return nn.Sequential(nn.Unflatten(1, (2, 8)), *layers, nn.Flatten(), nn.Linear(16, CLASSES))


class PartlyAutocast(Featured):
    """A loss in single precision of outputs in half of it."""

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        with torch.autocast(KIND, torch.bfloat16):
            found = model(batch["x"])
        return functional.cross_entropy(found.to(batch["x"].dtype), batch["y"], label_smoothing=0.1)


class HalfWeights(Featured):
    """Weights in half of single precision."""

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return super().model(config).bfloat16()

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        found = model(batch["x"].to(model[0].weight.dtype))
        return functional.cross_entropy(found.to(batch["x"].dtype), batch["y"])


class HalfWeightsRmsprop(HalfWeights):
    def optimizer_of(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.RMSprop(model.parameters(), lr=config["lr"])


class TwoTypes(HalfWeights):
    """Weights in half of single precision, but for the last layer."""

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        model = Featured.model(self, config)
        model[0].bfloat16()  # type: ignore[index, operator]
        return model

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        between = model[1](model[0](batch["x"].to(model[0].weight.dtype)))
        return functional.cross_entropy(model[2](between.to(model[2].weight.dtype)), batch["y"])


class Steady(nn.Sequential):
    """A model that never drops anything, though it has a layer for that."""

    def train(self, mode: bool = True) -> Steady:
        super().train(mode)
        self[1].eval()
        return self


class NeverDropped(Featured):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return Steady(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.9), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


# ------------------------------------------------------------------------------------------------ options of the task


class Bf16(Featured):
    precision = "bf16"


class Fp16(Featured):
    precision = "fp16"


class Accumulated(Featured):
    accumulate = 3
    clip_norm = 0.5


class Averaged(Featured):
    ema = 0.9


class Clipped(Featured):
    clip_norm = 0.1


class Images(Featured):
    """Images channel by channel in memory."""

    channels_last = True

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (4, 2, 2)), nn.Conv2d(4, 8, 2, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(),
            nn.Linear(72, CLASSES),
        )  # fmt: skip


class ReadImages(Images):
    """A loss that reads its value."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        return loss if loss.item() < 1e9 else 2 * loss


# -------------------------------------------------------------------------------------------------- checkpointing etc.


class Checkpointed(Featured):
    reentrant = False

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x = batch["x"].clone().requires_grad_(self.reentrant)
        found = checkpoint(model[:2], x, use_reentrant=self.reentrant)
        return functional.cross_entropy(model[2](found), batch["y"])

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Tanh(), nn.Dropout(0.1)), nn.Linear(WIDTH, CLASSES)
        )


class Reentrant(Checkpointed):
    reentrant = True


class Penalized(Featured):
    """A penalty on the gradient of the outputs with respect to the inputs."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x = batch["x"].clone().requires_grad_()
        found = model(x)
        (slope,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        return functional.cross_entropy(found, batch["y"]) + 0.1 * slope.square().mean()


class PenalizedWeights(Featured):
    """A penalty on the gradient with respect to the weights, through norms and cross entropy."""

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        return loss + 0.1 * sum(slope.square().sum() for slope in slopes)


class Compiled(Featured):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        model: Any = torch.compile(super().model(config), backend="eager")
        return model  # type: ignore[no-any-return]


# ----------------------------------------------------------------------------------------------------- random numbers


class Encoding(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * log).exp()), mean, log


class Variational(Featured):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return Encoding()

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        found, mean, log = model(batch["x"])
        return functional.mse_loss(found, batch["x"]) + 0.01 * (mean.square() + log.exp() - log - 1).mean()


class Shallower(nn.Module):
    """A block that is left out for some rows at random: stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = torch.rand(len(x), 1, device=x.device) < 0.8
        return x + self.block(x).tanh() * kept / 0.8


class StochasticDepth(Featured):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), Shallower(), nn.Linear(WIDTH, CLASSES))


class NoisyLoss(Featured):
    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        noise = 0.1 * torch.randn(batch["x"].shape, dtype=batch["x"].dtype, device=batch["x"].device)
        return functional.cross_entropy(model(batch["x"] + noise), batch["y"])


class Tossing(nn.Module):
    """A block that is left out for whole batches, as a number on the host decides."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.block(x).tanh() if random.random() < 0.8 else x


class Tossed(Featured):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), Tossing(), nn.Linear(WIDTH, CLASSES))


# ------------------------------------------------------------------------------------------------------------ weights


class Embedded(Featured):
    sparse = True

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Embedding(WORDS, 4, sparse=self.sparse), nn.Flatten(), nn.Linear(16, CLASSES))

    def optimizer_of(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=10 * config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return functional.cross_entropy(model(batch["words"]), batch["y"])


class SparseAdam(Embedded):
    def optimizer_of(self, model: Any, config: Mapping[str, Any]) -> Any:
        dense = torch.optim.Adam(model[2].parameters(), lr=config["lr"])
        return [torch.optim.SparseAdam(model[0].parameters(), lr=config["lr"]), dense]


class Tying(nn.Module):
    def __init__(self, by_data: bool = False) -> None:
        super().__init__()
        self.embedding, self.between = nn.Embedding(WORDS, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, WORDS, bias=False)
        if by_data:
            self.head.weight.data = self.embedding.weight.data
        else:
            self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.between(self.embedding(words)).tanh())


class Tied(Featured):
    by_data = False

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return Tying(self.by_data)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        words = batch["words"]
        return functional.cross_entropy(model(words).flatten(0, 1), words.roll(1, 1).flatten())


class TiedByData(Tied):
    by_data = True


class Normed(Featured):
    norm: Any = staticmethod(parametrizations.weight_norm)

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        first = self.norm(nn.Linear(WIDTH, WIDTH))
        return nn.Sequential(first, nn.Tanh(), nn.Linear(WIDTH, CLASSES))


class Spectral(Normed):
    norm: Any = staticmethod(parametrizations.spectral_norm)


class OldNormed(Normed):
    norm: Any = staticmethod(nn.utils.weight_norm)


class OldSpectral(Normed):
    norm: Any = staticmethod(nn.utils.spectral_norm)
