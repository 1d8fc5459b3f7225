"""Transformers: the batches of an update count by their labels, with the bits of a Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hopfleet as hop
from hopfleet.domain.placement import CPU, Placement
from hopfleet.frameworks.base import EngineCache, IsolationError
from hopfleet.frameworks.torch.engines.cuda_graphs import CudaGraphs
from hopfleet.frameworks.torch.engines.interleaved import Interleaved
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps
from hopfleet.testing.frameworks import BATCH, ROWS, _Batches
from hopfleet.testing.strategies import with_team
from tests.helpers.by_trainer import InOrder, by_trainer
from tests.helpers.recorded_capture import recorded_capture
from tests.helpers.transformers_tasks import classifier, opened, tokens, transformers, writer

peft = pytest.importorskip("peft")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PLAIN = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
SIZES = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def adapted() -> Any:
    return peft.get_peft_model(writer(), peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))


def masked() -> Any:
    shape = transformers.ModernBertConfig(**SIZES, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1)
    return transformers.ModernBertForMaskedLM(shape)


def translator() -> Any:
    shape = {"vocab_size": 16, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**shape, decoder_start_token_id=0))


def steady() -> Any:
    """Return a classifier without dropout, which members of a team would draw apart."""
    shape = transformers.BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return transformers.BertForSequenceClassification(shape)


def declining() -> Any:
    model = writer()
    model.accepts_loss_kwargs = False
    return model


def uneven(rows: int = ROWS) -> dict[str, np.ndarray]:
    """Return rows with different numbers of labels; a whole batch has none."""
    ids = tokens()["input_ids"][:rows]
    labels = ids.copy()
    labels[np.arange(rows) % 3 == 1, :4] = -100
    labels[np.arange(rows) // BATCH % 4 == 1, 3:] = -100
    labels[BATCH : 2 * BATCH] = -100
    return {"input_ids": ids, "labels": labels}


class Chosen(hop.TransformersTask):
    """A task with a model that a test chooses."""

    make: Any = staticmethod(writer)

    def build(self, config: Mapping[str, Any]) -> Any:
        return type(self).make()


def task(model: Any, **attributes: Any) -> hop.TransformersTask:
    made: hop.TransformersTask = type("Chosen", (Chosen,), {"make": staticmethod(model), **attributes})()
    return made


class Told(Steps):
    """Steps that keep the loss of each batch."""

    kept: list[float]

    def note(self, values: Any, *rows: int) -> None:
        super().note(values, *rows)
        Told.kept += values["loss"].reshape(-1).tolist()


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The losses of all batches that a session has trained on."""
    Told.kept = []
    monkeypatch.setattr("hopfleet.frameworks.torch.task.Steps", Told)
    return Told.kept


def same_weights(session: TorchSession, trainer: InOrder) -> bool:
    found = session.model.state_dict()
    return all(torch.equal(value, found[name]) for name, value in trainer.model.state_dict().items())


# ---------------------------------------------------------------------------------------------- bits of a Trainer


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("model", [writer, adapted, masked, translator, classifier])
def test_bits_are_those_of_a_trainer(model: Any, accumulate: int, tmp_path: Path, losses: list[float]) -> None:
    columns = uneven()
    if model is classifier:
        columns["labels"] = tokens()["label"]
    elif accumulate == 1 or model is translator:  # the loss of a batch without labels is not a number
        columns = {name: np.delete(column, range(BATCH, 2 * BATCH), 0) for name, column in columns.items()}
    chosen = {**PLAIN, "gradient_accumulation_steps": accumulate}
    session = opened(task(model), **chosen)
    found = session.train(_Batches(session, columns), last=True)["train_loss"].mean
    trainer = by_trainer(model, columns, tmp_path, chosen)
    assert same_weights(session, trainer)
    assert losses == trainer.losses
    updates = [trainer.losses[start : start + accumulate] for start in range(0, len(losses), accumulate)]
    weights = np.array([len(some) for some in updates])
    assert found == pytest.approx(float((np.array([sum(some) for some in updates]) * weights).sum() / weights.sum()))


def test_smoothed_labels_of_an_encoder_with_a_decoder_are_not_shifted(tmp_path: Path, losses: list[float]) -> None:
    columns = tokens()
    columns = {"input_ids": columns["input_ids"], "labels": columns["input_ids"][:, ::-1].copy()}
    columns["decoder_input_ids"] = np.roll(columns["labels"], 1, 1)
    chosen = {**PLAIN, "gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1}
    session = opened(task(translator), **chosen)
    session.train(_Batches(session, columns), last=True)
    trainer = by_trainer(translator, columns, tmp_path, chosen)
    assert losses == trainer.losses
    assert same_weights(session, trainer)


@pytest.mark.parametrize("settings", [{"label_smoothing_factor": 0.2}, {"max_grad_norm": 0.1}, {"bf16": True}], ids=str)
@pytest.mark.parametrize("model", [writer, adapted])
def test_other_settings_keep_the_bits(
    model: Any, settings: dict[str, Any], tmp_path: Path, losses: list[float]
) -> None:
    chosen = {**PLAIN, "gradient_accumulation_steps": 3, **settings}
    session = opened(task(model), **chosen)
    session.train(_Batches(session, uneven()), last=True)
    trainer = by_trainer(model, uneven(), tmp_path, chosen)
    assert losses == trainer.losses
    assert same_weights(session, trainer)


class Closed(transformers.LlamaForCausalLM):
    """A model that takes no other keywords."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)


def closed() -> Any:
    return Closed(writer().config)


@pytest.mark.parametrize("model", [declining, closed])
def test_a_model_that_declines_the_number_of_labels_has_means_of_batches(
    model: Any, tmp_path: Path, losses: list[float]
) -> None:
    columns = {name: column[np.r_[:BATCH, 2 * BATCH : ROWS, :BATCH]] for name, column in uneven().items()}
    chosen = {**PLAIN, "gradient_accumulation_steps": 2}
    session = opened(task(model), **chosen)
    session.train(_Batches(session, columns), last=True)
    trainer = by_trainer(model, columns, tmp_path, chosen)
    assert same_weights(session, trainer)
    assert [loss / 2 for loss in losses] == trainer.losses


def test_a_collator_makes_the_labels_that_are_counted(tmp_path: Path, losses: list[float]) -> None:
    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = torch.stack([torch.as_tensor(row["input_ids"]) for row in rows])
        return {"input_ids": ids, "labels": ids.masked_fill(ids % 3 == 0, -100)}

    columns = {"input_ids": tokens()["input_ids"]}
    chosen = {**PLAIN, "gradient_accumulation_steps": 3}
    session = opened(task(writer, data_collator=staticmethod(collate)), **chosen)
    session.train(_Batches(session, columns), last=True)
    trainer = by_trainer(writer, columns, tmp_path, chosen, collate)
    assert losses == trainer.losses
    assert same_weights(session, trainer)


def test_evaluation_is_the_mean_of_each_batch() -> None:
    columns = {name: column[2 * BATCH : 3 * BATCH] for name, column in uneven().items()}
    sessions = [opened(task(writer), **PLAIN, gradient_accumulation_steps=some) for some in (1, 3)]
    one, other = (session.evaluate(_Batches(session, columns), seed=1) for session in sessions)
    assert one == other


def test_random_inputs_are_made_once() -> None:
    made: list[torch.Tensor] = []

    class Random(Chosen):
        def inputs(self, model: Any, batch: Any) -> dict[str, Any]:
            found = super().inputs(model, batch)
            found["labels"] = found["labels"].masked_fill(torch.rand(found["labels"].shape) < 0.5, -100)
            made.append(found["labels"])
            return found

    session = opened(Random(), **PLAIN, gradient_accumulation_steps=3)
    assert not session.options.capture
    session.train(_Batches(session, {"input_ids": tokens()["input_ids"]}), last=True)
    assert len(made) == ROWS // BATCH


def test_updates_with_labels_and_without_are_refused() -> None:
    class Some(Chosen):
        def weighed(self, model: Any, batches: Any) -> Any:
            return super().weighed(model, batches) if batches[0]["input_ids"][0, 0] != 99 else None

    ids = tokens()["input_ids"]
    ids[2 * BATCH, 0] = 99
    session = opened(Some(), **PLAIN, gradient_accumulation_steps=2)
    with pytest.raises(hop.HopfleetError, match="some batches have labels, and others have none"):
        session.train(_Batches(session, {"input_ids": ids}), last=True)


# -------------------------------------------------------------------------------------------------------- flotillas

MIXED = (1, 2, 3, 2)


def several(kind: hop.TransformersTask, cache: EngineCache | None = None) -> list[TorchSession]:
    return [
        kind.framework.open(
            {**PLAIN, "learning_rate": 0.1 / number, "gradient_accumulation_steps": accumulate},
            seed=number, placement=CPU, threads=1, cache=cache,
        )
        for number, accumulate in enumerate(MIXED, 1)
    ]  # fmt: skip


def drawn() -> Any:
    shape = transformers.GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    return transformers.GPT2LMHeadModel(shape)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("model", [writer, drawn])
def test_members_that_accumulate_different_numbers_train_as_alone(model: Any, captured: bool) -> None:
    columns = {name: column[2 * BATCH :] for name, column in uneven().items()}
    cache = EngineCache()
    backend = recorded_capture(cache)
    together, alone = several(task(model), cache), several(task(model))
    for _ in range(2):
        flotilla = CudaGraphs(together) if captured else Interleaved(together)
        found = flotilla.train(_Batches(together[0], columns), last=[True] * len(MIXED))
        assert found == [session.train(_Batches(session, columns), last=True) for session in alone]
    steps = [len(capture.graphs) for session in together for capture in session.kept.get(Steps, {}).values()]
    assert steps == ([min(accumulate, 3) for accumulate in MIXED] if captured else [])
    assert (backend.captures > 0) == captured
    for one, other in zip(together, alone, strict=True):
        weights = other.model.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in one.model.state_dict().items())


class Sized:
    """Rows in batches of another size."""

    def __init__(self, session: TorchSession, columns: Mapping[str, Any], size: int) -> None:
        self._session, self._columns, self._size = session, columns, size
        self.rows = len(columns["labels"])

    def __len__(self) -> int:
        return -(-self.rows // self._size)

    def __iter__(self) -> Any:
        for start in range(0, self.rows, self._size):
            yield self._session.prepare({k: v[start : start + self._size] for k, v in self._columns.items()}, {})


def test_members_with_batches_of_other_sizes_train_as_alone() -> None:
    columns = {name: column[2 * BATCH :] for name, column in uneven().items()}
    kind = task(writer)
    together, alone = several(kind), several(kind)
    streams, of = [Sized(together[0], columns, size) for size in (8, 5)], [0, 1, 1, 0]
    found = Interleaved(together).train_mixed(streams, of, last=[True] * len(MIXED))
    for number, session in enumerate(alone):
        assert found[number] == session.train(Sized(session, columns, (8, 5)[of[number]]), last=True)
        weights = session.model.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in together[number].model.state_dict().items())


def test_members_that_draw_when_labels_are_counted_train_as_alone() -> None:
    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = torch.stack([torch.as_tensor(row["input_ids"]) for row in rows])
        return {"input_ids": ids, "labels": ids.masked_fill(torch.rand(ids.shape) < 0.4, -100)}

    columns = {"input_ids": tokens()["input_ids"]}
    kind = task(writer, data_collator=staticmethod(collate))
    together, alone = several(kind), several(kind)
    found = Interleaved(together).train(_Batches(together[0], columns), last=[True] * len(MIXED))
    assert found == [session.train(_Batches(session, columns), last=True) for session in alone]
    for one, other in zip(together, alone, strict=True):
        weights = other.model.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in one.model.state_dict().items())


def test_a_member_that_writes_into_a_later_batch_is_found() -> None:
    class Writes(Chosen):
        def inputs(self, model: Any, batch: Any) -> dict[str, Any]:
            batch["input_ids"][0, 0] = 3
            return super().inputs(model, batch)

    together = several(Writes())
    with pytest.raises(IsolationError, match="writes into the tensors of its batch"):
        Interleaved(together).train(_Batches(together[0], uneven()), last=[True] * len(MIXED))


# ------------------------------------------------------------------------------------------------------------ teams


def on_devices(kind: hop.TransformersTask, strategy: str, size: int, team: Any = None) -> TorchSession:
    cache = EngineCache()
    cache.team = team
    placement = Placement(("cpu",) * size, strategy) if team else CPU
    config = {**PLAIN, "gradient_accumulation_steps": 3}
    return kind.framework.open(config, seed=7, placement=placement, threads=1, cache=cache)


@pytest.mark.parametrize("model", [writer, steady])
@pytest.mark.parametrize(("strategy", "size"), [("ddp", 3), ("fsdp", 2), ("ps", 2), ("spill", 1)])
def test_a_team_trains_as_one_device(model: Any, strategy: str, size: int, tmp_path: Path) -> None:
    columns = {"input_ids": tokens()["input_ids"], "labels": tokens()["label"]}
    if model is writer:  # batches have different numbers of labels, and the rows of one have the same
        columns["labels"] = columns["input_ids"].copy()
        columns["labels"][np.arange(ROWS) // BATCH % 4 == 1, 3:] = -100

    def trained(session: TorchSession) -> tuple[float, dict[str, np.ndarray]]:
        loss = session.train(_Batches(session, columns), last=True)["train_loss"].mean
        session.save(tmp_path / "saved")
        return loss, {name: value.numpy().copy() for name, value in load_file(tmp_path / "saved").items()}

    alone, weights = trained(on_devices(task(model), strategy, size))
    found, others = with_team(task(model), size, lambda team, _: trained(on_devices(task(model), strategy, size, team)))
    assert found == (alone if size == 1 else pytest.approx(alone, rel=1e-6))
    for name, value in weights.items():
        if size == 1:
            assert np.array_equal(value, others[name]), name
        elif value.dtype.kind == "f":
            np.testing.assert_allclose(value, others[name], rtol=1e-4, atol=1e-6)


def test_members_with_updates_of_their_own_are_refused() -> None:
    class OneGroup(Chosen):
        def optimizers(self, model: Any, config: Any) -> Any:
            return torch.optim.SGD(model.parameters(), lr=0.1)

    with pytest.raises(hop.HopfleetError, match="make updates of batches of their own; use 'ps'"):
        with_team(OneGroup(), 2, lambda team, _: on_devices(OneGroup(), "ps_async", 2, team))


def test_a_team_refuses_inputs_that_are_drawn() -> None:
    class Drawn(Chosen):
        def inputs(self, model: Any, batch: Any) -> dict[str, Any]:
            found = super().inputs(model, batch)
            found["labels"] = found["labels"] + 0 * torch.rand(1).long()
            return found

    def train(team: Any, _: Any) -> None:
        session = on_devices(Drawn(), "ddp", 2, team)
        session.train(_Batches(session, {"input_ids": tokens()["input_ids"]}), last=True)

    with pytest.raises(hop.HopfleetError, match=r"inputs of a batch are drawn at random.*parallelism='single'"):
        with_team(Drawn(), 2, train)
