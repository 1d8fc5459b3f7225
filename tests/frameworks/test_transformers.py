"""Transformers: the suite of all adapters, bits against a plain loop, adapters, preferences, generation, bad input."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.testing.frameworks import BATCH, ROWS, FrameworkSuite, _Batches
from tests.helpers import warm
from tests.helpers.by_trainer import by_trainer
from tests.helpers.transformers_tasks import (
    Classify,
    Lists,
    classifier,
    opened,
    texts,
    tokenizer,
    tokens,
    transformers,
    writer,
)

peft = pytest.importorskip("peft")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Write(hop.TransformersTask):
    """A causal language model with a LoRA adapter on a frozen base."""

    def build(self, config: Mapping[str, Any]) -> Any:
        adapter = peft.LoraConfig(r=config["rank"], target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        return peft.get_peft_model(writer(), adapter)


class Suite(FrameworkSuite):
    _run = staticmethod(warm.run)

    def columns(self):
        return tokens()


class TestClassify(Suite):
    module = "transformers"
    config: ClassVar[dict[str, Any]] = {"learning_rate": 1e-2, "weight_decay": 0.01, "max_steps": 100}
    other: ClassVar[dict[str, Any]] = {"learning_rate": 1e-3, "weight_decay": 0.0, "max_steps": 50}
    bad: ClassVar[dict[str, Any]] = {"optim": "nonsense"}

    def make(self):
        return Classify()


class TestWrite(Suite):
    config: ClassVar[dict[str, Any]] = {"learning_rate": 1e-2, "rank": 2, "gradient_accumulation_steps": 2}
    other: ClassVar[dict[str, Any]] = {"learning_rate": 1e-2, "rank": 4, "gradient_accumulation_steps": 1}

    def columns(self):
        return {"input_ids": super().columns()["input_ids"]}

    def make(self):
        return Write()

    # The class above has tested what is the same here.
    test_a_fresh_process_continues_to_the_same_bytes = None
    test_hopfleet_does_without_the_framework = None
    test_trials_hop_and_survive_a_killed_worker_to_the_same_bits = None


def trained(session: Any, columns: Mapping[str, Any]) -> Any:
    return session.train(_Batches(session, columns), last=True)


# --------------------------------------------------------------------------------------------- bits of a plain loop


@pytest.mark.parametrize("optim", ["sgd", "adamw_torch"])
def test_bits_are_those_of_a_plain_loop(optim: str) -> None:
    columns = TestClassify().columns()
    session = opened(Classify(), optim=optim, learning_rate=0.01, max_steps=100, weight_decay=0.1)
    trained(session, columns)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = classifier().train()
    plain = [name for name in dict(model.named_parameters()) if "bias" in name or "LayerNorm" in name]
    groups = [
        {"params": [p for n, p in model.named_parameters() if n not in plain], "weight_decay": 0.1},
        {"params": [p for n, p in model.named_parameters() if n in plain], "weight_decay": 0.0},
    ]
    kind = torch.optim.SGD if optim == "sgd" else torch.optim.AdamW
    optimizer = kind(groups, lr=0.01)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, 100)
    for start in range(0, ROWS, BATCH):
        ids, labels = (torch.from_numpy(column[start : start + BATCH]) for column in columns.values())
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    torch.set_num_threads(threads)
    for name, value in model.state_dict().items():
        assert torch.equal(value, session.model.state_dict()[name]), name


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optim", ["sgd", "adamw_torch", "adamw_torch_fused"])
def test_bits_are_those_of_a_trainer(optim: str, accumulate: int, tmp_path: Path) -> None:
    columns = TestClassify().columns()
    columns["labels"] = columns.pop("label")
    chosen = {"optim": optim, "learning_rate": 0.01, "max_steps": 20, "warmup_steps": 2, "weight_decay": 0.1}
    chosen["gradient_accumulation_steps"] = accumulate
    session = opened(Classify(), **chosen)
    trained(session, columns)
    trainer = by_trainer(classifier, columns, tmp_path, chosen)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, session.model.state_dict()[name]), name
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    assert rates == [group["lr"] for group in session.optimizers[0].param_groups]


# ------------------------------------------------------------------------------------------------ kinds of training


def test_text_is_tokenized_and_learned(tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path / "tokenizer")

    class Task(Classify):
        tokenizer = str(tmp_path / "tokenizer")

    session = opened(Task(), learning_rate=0.05)
    for _ in range(8):
        session.train(Lists(session, texts()), last=True)
    metrics = session.evaluate(Lists(session, texts()), seed=1)
    assert metrics.keys() == {"loss", "accuracy"}
    assert metrics["accuracy"].mean > 0.9


def test_collators_and_rows_of_different_lengths_are_padded() -> None:
    rows = [np.arange(3, 5 + n % 3) for n in range(BATCH)]
    columns = {"input_ids": rows, "label": np.zeros(BATCH, dtype="int64")}

    class Collated(Classify):
        data_collator = staticmethod(transformers.DataCollatorWithPadding(tokenizer()))

    found = []
    for task in (Classify(), Collated()):
        session = opened(task, learning_rate=0.1)
        inputs = session.hooks.inputs(session.model, session.prepare(columns, {}))
        assert (
            inputs["input_ids"].shape == (BATCH, 4) and inputs["attention_mask"].sum() == 2 + 3 + 4 + 2 + 3 + 4 + 2 + 3
        )
        found.append(session.model.eval()(**inputs).loss.item())
    assert found[0] == found[1]


def test_only_the_adapter_is_trained() -> None:
    session = opened(Write(), learning_rate=0.1, rank=2)
    before = {name: value.clone() for name, value in session.model.state_dict().items()}
    trained(session, TestWrite().columns())
    changed = {name for name, value in session.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and all("lora" in name for name in changed)
    assert session.parameters == sum(p.numel() for p in session.model.parameters() if p.requires_grad)


def preferences() -> dict[str, np.ndarray]:
    columns = {"prompt": "a very", "chosen": "good film", "rejected": "bad one film"}
    return {name: np.array([text] * ROWS, dtype=object) for name, text in columns.items()}


@pytest.mark.parametrize("adapter", [False, True], ids=["whole", "adapter"])
def test_preferences(adapter: bool, tmp_path: Path) -> None:
    class Prefer(Write):
        tokenizer = tokenizer()
        dpo_beta = property(lambda self: self.config["beta"])

        def build(self, config: Mapping[str, Any]) -> Any:
            return super().build(config) if adapter else writer()

    session = opened(Prefer(), learning_rate=0.05, beta=0.1, rank=2)
    first = session.evaluate(Lists(session, preferences()), seed=1)
    assert first["loss"].mean == pytest.approx(np.log(2), abs=1e-6)  # the model is the one that it is compared with
    session.train(Lists(session, preferences()), last=True)
    then = session.evaluate(Lists(session, preferences()), seed=1)
    assert then["loss"].mean < first["loss"].mean and then["accuracy"].mean == 1 and then["margin"].mean > 0
    session.save(tmp_path / "version")
    again = opened(Prefer(), learning_rate=0.05, beta=0.1, rank=2)
    again.load(tmp_path / "version")
    assert again.evaluate(Lists(again, preferences()), seed=1) == then
    config = {"learning_rate": 0.05, "beta": 0.1, "rank": 2}
    assert not hasattr(Prefer().framework.model(config, tmp_path / "version"), "reference")
    Prefer().framework.export(config, tmp_path / "version", tmp_path / "weights")
    assert not [name for name in hop.state_dict(tmp_path / "weights") if "reference" in name]


def test_generated_text_is_measured() -> None:
    class Answers(Write):
        tokenizer = tokenizer()

        def metrics(self, model: Any, batch: Any) -> Any:
            answers = self.generate(model, batch["prompt"], max_new_tokens=3)
            assert len(answers) == BATCH
            return {
                "exact": np.mean([answer == wanted for answer, wanted in zip(answers, batch["chosen"], strict=True)])
            }

    session = opened(Answers(), learning_rate=0.1, rank=2)
    assert session.evaluate(Lists(session, preferences()), seed=1).keys() == {"exact"}


def test_a_model_with_an_encoder_answers_without_its_prompt() -> None:
    class Translate(hop.TransformersTask):
        tokenizer = tokenizer()

        def build(self, config: Mapping[str, Any]) -> Any:
            sizes = {"d_model": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "d_kv": 4}
            shape = transformers.T5Config(
                vocab_size=16, **sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=2
            )
            return transformers.T5ForConditionalGeneration(shape)

    session = opened(Translate(), learning_rate=0.1)
    columns = {"input_ids": TestClassify().columns()["input_ids"], "labels": np.full((ROWS, 2), [3, 2])}
    for _ in range(6):
        trained(session, columns)
    assert session.hooks.generate(session.model.eval(), ["a very good film one"], max_new_tokens=3) == ["good"]


@pytest.mark.parametrize(
    "adapter",
    [
        peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
        peft.LoHaConfig(r=2, target_modules=["q_proj"]),
        peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
    ],
    ids=lambda adapter: adapter.peft_type.value,
)
def test_other_adapters_hop(adapter: Any, tmp_path: Path) -> None:
    class Task(hop.TransformersTask):
        def build(self, config: Mapping[str, Any]) -> Any:
            return peft.get_peft_model(writer(), adapter)

    columns = TestWrite().columns()
    session, again = opened(Task(), learning_rate=0.1), opened(Task(), learning_rate=0.1)
    trained(session, columns)
    session.save(tmp_path / "version")
    again.load(tmp_path / "version")
    assert trained(again, columns) == trained(session, columns)


# ------------------------------------------------------------------------------------------------ whole experiments


def test_an_experiment(tmp_path: Path) -> None:
    class Task(Classify):
        tokenizer = tokenizer()

    columns = {name: column.tolist() for name, column in texts().items()}
    results = hop.Experiment(
        Task(),
        train=columns,
        valid=columns,
        space={"learning_rate": hop.grid_search([0.05, 0.01])},
        workers=1,
        search=hop.Grid(max_epochs=2),
        batch_size=16,
        backend="inline",
        metric="accuracy",
        mode="max",
        run_options=hop.RunOptions(folder=tmp_path / "run"),
    ).fit(quiet=True)
    assert results.finished and results.verify().ok
    results.best.model().save_pretrained(tmp_path / "best")
    assert transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "best").num_labels == 2


class Predicting(Classify):
    def predict(self, model: Any, batch: Any) -> Any:
        with torch.no_grad():
            return model(input_ids=torch.as_tensor(batch["input_ids"])).logits.softmax(-1)


def test_exported_models_are_read_back(tmp_path: Path) -> None:
    rows = Suite().columns()
    best = hop.Experiment(
        Predicting(), train=rows, valid=rows, space={"learning_rate": 0.05}, search=hop.Grid(max_epochs=1),
        batch_size=16, partitions=1, backend="inline", run_options=hop.RunOptions(folder=tmp_path / "run"),
    ).fit(quiet=True).best  # fmt: skip
    new = {"input_ids": rows["input_ids"][:3]}
    wanted = best.predict(new)
    assert best.export(tmp_path / "weights").deviation == 0
    model = classifier()
    model.load_state_dict(hop.state_dict(tmp_path / "weights"))
    assert Predicting().predict(model.eval(), new).tolist() == wanted["prediction"].to_pylist()
    assert best.export(tmp_path / "bundle", format="bundle").deviation == 0
    assert hop.load_bundle(tmp_path / "bundle").predict(new).equals(wanted)
