"""On a GPU: models of kinds that the engines were not written for, as people write them, one at a time and together.

    python -m benchmarks.flotilla.unseen [vit cnn scaler unet tabular lstm weights loop] [--trials 16]
    python -m benchmarks.flotilla.unseen llama llama-dropout qwen gpt2-lora --trials 8
    python -m benchmarks.flotilla.unseen vit cnn scaler unet tabular lstm weights --steps 1000 --turns 2

``vit``: patches, ``nn.TransformerEncoder`` and warmup per batch; ``cnn``: convolutions with GroupNorm under bfloat16
autocast; ``scaler``: the same in float16 with a GradScaler; ``unet``: ``interpolate``, BatchNorm and RMSprop;
``tabular``: embeddings of categories, OneCycleLR; ``lstm``: bidirectional; ``weights``: class weights that are made in
``loss``, NAdam; ``loop``: a ``train`` of its own with clipping. Batches of 64. ``llama``, ``llama-dropout``, ``qwen``
and ``gpt2-lora``: language models of Hugging Face with frozen weights in bfloat16 (8 layers of 512; random weights, the
same in all trials) and adapters of PEFT, batches of 512 tokens. Columns are those of ``benchmarks.flotilla.ordinary``;
``fast`` is compared with ``exact`` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import hopfleet as hop
from benchmarks.flotilla import ordinary
from benchmarks.flotilla.ordinary import RATE, Workload

SIDE, CLASSES = 16, 10


def pictures(batch: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return pictures of 16 x 16 pixels, and their classes."""
    x = batch["x"][:, : 3 * SIDE * SIDE].float().reshape(-1, 3, SIDE, SIDE)
    return x, batch["y"] % CLASSES


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 64, 4, 4)
        self.first, self.places = nn.Parameter(torch.zeros(1, 1, 64)), nn.Parameter(torch.zeros(1, 17, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Any) -> Any:
        tokens = self.cut(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.head(self.blocks(tokens)[:, 0])


class Vit(hop.TorchTask):
    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model = Patches()
        optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x, y = pictures(batch)
        return nn.functional.cross_entropy(model(x), y)


def convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for inside, outside in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(8, outside), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4, CLASSES))


class Cnn(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = convolutions()
        return model, torch.optim.AdamW(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x, y = pictures(batch)
        with torch.autocast(x.device.type, torch.bfloat16):
            return nn.functional.cross_entropy(model(x), y)


class Scaled(Cnn):
    precision = "fp16"

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x, y = pictures(batch)
        return nn.functional.cross_entropy(model(x), y)


class Down(nn.Sequential):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Down(3, 16), Down(16, 32), Down(32, 64)
        self.four, self.five, self.last = Down(96, 32), Down(48, 16), nn.Conv2d(16, 2, 1)

    def forward(self, x: Any) -> Any:
        one = self.one(x)
        two = self.two(nn.functional.max_pool2d(one, 2))
        three = self.three(nn.functional.max_pool2d(two, 2))

        def larger(x: Any) -> Any:
            return nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)

        four = self.four(torch.cat([larger(three), two], 1))
        return self.last(self.five(torch.cat([larger(four), one], 1)))


class Unet(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = Halves()
        return model, torch.optim.RMSprop(model.parameters(), lr=config["lr"], momentum=0.9)

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        x, _ = pictures(batch)
        return nn.functional.cross_entropy(model(x), (x.mean(1) > 0).long())


class Categories(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, 16) for _ in range(8))
        self.rest = nn.Sequential(
            nn.Linear(8 * 16 + 32, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 2)
        )

    def forward(self, codes: Any, numbers: Any) -> Any:
        found = [table(codes[:, number]) for number, table in enumerate(self.tables)]
        return self.rest(torch.cat([*found, numbers], 1))


class Tabular(hop.TorchTask):
    lr_step = "batch"

    def build(self, config: Mapping[str, Any]) -> Any:
        model = Categories()
        optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
        return (
            model,
            optimizer,
            torch.optim.lr_scheduler.OneCycleLR(optimizer, config["lr"], total_steps=self.total_steps),
        )

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        codes = (batch["x"][:, :8] * 1000).long() % 50
        return nn.functional.cross_entropy(model(codes, batch["x"][:, 8:40]), batch["y"])


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(32, 64, bidirectional=True, batch_first=True)
        self.head = nn.Linear(128, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(x)[0][:, -1])


class Lstm(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = Both()
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return nn.functional.cross_entropy(model(batch["x"].view(-1, 32, 32)), batch["y"])


class Weighted(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = nn.Sequential(nn.Linear(1024, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 2))
        return model, torch.optim.NAdam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        weight = torch.tensor([1.0, self.config["weight"]], device=batch["x"].device)
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"], weight=weight)


class Loop(hop.TorchTask):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 2))
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def train(self, model: Any, batches: Any, config: Mapping[str, Any]) -> Any:
        optimizer = self.optimizer
        for batch in batches:
            optimizer.zero_grad()
            self.loss(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return {}


SHAPE: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "use_cache": False,
}


class Llama(hop.TorchTask):
    dropout = 0.0
    where: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")

    def build(self, config: Mapping[str, Any]) -> Any:
        from peft import LoraConfig, get_peft_model

        with torch.random.fork_rng():
            torch.manual_seed(0)  # where people load what was trained before, which is the same in all trials
            base = self.base().to(torch.bfloat16)
        model = get_peft_model(
            base, LoraConfig(r=8, lora_alpha=16, lora_dropout=self.dropout, target_modules=self.where)
        )
        return model, torch.optim.AdamW(model.parameters(), lr=config["lr"])

    def base(self) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaForCausalLM(LlamaConfig(**SHAPE))

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return model(input_ids=batch["x"], labels=batch["x"]).loss


class Dropping(Llama):
    dropout = 0.05


class Qwen(Llama):
    def base(self) -> Any:
        from transformers import Qwen2Config, Qwen2ForCausalLM

        return Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=2))


class Gpt2(Llama):
    where = ("c_attn",)

    def base(self) -> Any:
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(
            GPT2Config(vocab_size=32000, n_positions=512, n_embd=512, n_layer=8, n_head=8, use_cache=False)
        )


def workload(task: type[hop.TorchTask], rows: int = 16384, **space: Any) -> Workload:
    return Workload(task, "mlp", rows, 64, {**RATE, **space}, 1, 8, 3, 1)


WORKLOADS = {
    "vit": workload(Vit),
    "cnn": workload(Cnn),
    "scaler": workload(Scaled),
    "unet": workload(Unet),
    "tabular": workload(Tabular),
    "lstm": workload(Lstm),
    "weights": workload(Weighted, weight=hop.uniform(1.0, 5.0)),
    "loop": workload(Loop),
    **{
        name: Workload(task, "tokens", 128, 1, RATE, 1, 6, 3, 1)
        for name, task in (("llama", Llama), ("llama-dropout", Dropping), ("qwen", Qwen), ("gpt2-lora", Gpt2))
    },
}


if __name__ == "__main__":
    ordinary.main(WORKLOADS, __doc__)
