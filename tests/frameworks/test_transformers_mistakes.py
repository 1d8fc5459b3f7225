"""Mistakes in tasks with Transformers are named."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.errors import TaskError
from hopfleet.frameworks.transformers import loading
from hopfleet.testing.frameworks import ROWS
from tests.helpers.transformers_tasks import Classify, Lists, classifier, opened, texts, tokenizer, tokens, transformers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def refused(task: Any, columns: Mapping[str, Any] | None = None, **config: Any) -> str:
    with pytest.raises(TaskError) as caught:
        session = opened(task, **config)
        session.train(Lists(session, texts() if columns is None else columns), last=True)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("nowhere/at-all", [], "and the hub does not give it (We couldn't connect"),
        ("nowhere/at/all", [], "there is no such folder on this machine; give a folder that save_pretrained() wrote"),
        ("{}", [], "the folder has no config.json (its files: none)"),
        ("{}", ["notes.txt"], "the folder has no config.json (its files: notes.txt)"),
        ("{}", ["config.json"], "the folder has no weights, such as model.safetensors"),
    ],
    ids=["hub", "missing", "empty", "other files", "no weights"],
)
def test_models_that_cannot_be_loaded_are_named(
    name: str, files: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    name = name.format(tmp_path)
    for file in files:
        (tmp_path / file).write_text(classifier().config.to_json_string())

    class Named(hop.TransformersTask):
        def build(self, config):
            return transformers.AutoModelForSequenceClassification.from_pretrained(name)

    assert (told := refused(Named())).startswith(f"build() asks for {name!r}: ") and words in told


@pytest.mark.parametrize("answer", ["unknown", "known", "none"])
def test_a_hub_that_nobody_knows_is_not_asked(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def resolve(host: str, port: int) -> list[Any]:
        asked.append(host)
        if answer == "unknown":
            raise socket.gaierror(socket.EAI_NONAME, "no such host")
        if answer == "none":
            over.wait()
        return []

    asked: list[str] = []
    monkeypatch.setattr("socket.getaddrinfo", resolve)
    monkeypatch.setattr(loading, "PATIENCE", 0.01 if answer == "none" else 60.0)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    Classify().framework.begin_worker()
    assert asked == ["huggingface.co"] * (2 if answer == "unknown" else 1)
    assert (answer == "unknown") == huggingface_hub.constants.HF_HUB_OFFLINE
    over.set()
    if answer == "unknown":  # unless it must be asked all the same
        for ask in (
            lambda: monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "http://proxy"}),
            lambda: monkeypatch.setenv("HF_HUB_OFFLINE", "0"),
        ):
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
            ask()
            Classify().framework.begin_worker()
            assert not huggingface_hub.constants.HF_HUB_OFFLINE


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num_train_epochs": 3}, "num_train_epochs=3: must be left out .*set max_epochs of the search"),
        ({"per_device_train_batch_size": 8}, "per_device_train_batch_size=8: .*set batch_size"),
        (
            {"neftune_noise_alpha": 5.0},
            "neftune_noise_alpha=5.0: is a setting of a Trainer that Hopfleet",
        ),
        ({"torch_compile": True}, "torch_compile=True: is a setting of a Trainer that Hopfleet does not have"),
    ],
)
def test_settings_of_a_trainer_that_would_be_ignored_are_refused(config: dict[str, Any], words: str) -> None:
    assert re.search(words, refused(Classify(), tokens(), **config))
    opened(Classify(), seed=3, width=4)  # other names are the task's own


def test_errors_of_build_that_are_not_about_loading_stay_as_they_are(tmp_path: Path) -> None:
    classifier().save_pretrained(tmp_path)

    class Failing(hop.TransformersTask):
        def build(self, config):
            transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
            raise ValueError("too wide")

    with pytest.raises(ValueError, match="too wide"):
        opened(Failing())


def test_a_missing_tokenizer_is_named() -> None:
    assert "the batch has text in 'text', but the task has no tokenizer" in refused(Classify())
    wrong = type("Wrong", (Classify,), {"tokenizer": "nowhere/at/all"})
    assert "tokenizer='nowhere/at/all': cannot be loaded" in refused(wrong())
    wrong = type("Wrong", (Classify,), {"tokenizer": transformers.BertTokenizer})
    assert "tokenizer=BertTokenizer: it is a class; give an object or a folder" in refused(wrong())
    unpadded = tokenizer()
    unpadded.pad_token = None
    wrong = type("Wrong", (Classify,), {"tokenizer": unpadded})
    assert "has no token for padding" in refused(wrong())


def test_a_folder_with_a_model_and_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    classifier().save_pretrained(tmp_path)
    wrong = type("Wrong", (Classify,), {"tokenizer": tmp_path})
    assert f"tokenizer={str(tmp_path)!r}: there is no tokenizer, only" in refused(wrong())
    tokenizer().save_pretrained(tmp_path)
    session = opened(wrong())
    assert session.train(Lists(session, texts()), last=True)


def test_tokens_that_the_model_does_not_know_are_explained() -> None:
    session = opened(Classify())
    columns = {**tokens(), "input_ids": np.full((ROWS, 3), 16)}
    with pytest.raises(IndexError) as caught:
        session.train(Lists(session, columns), last=True)
    Classify().framework.explain(caught.value)
    assert "not in the vocabulary of the model" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"learning_rat": 1}, "did you mean 'learning_rate'"),
        ({"num_train_epochs": 3}, "set max_epochs of the search"),
        ({"lr_scheduler_type": "linear"}, "set max_steps"),
        ({"optim": "lion"}, "override optimizers(self, model, config)"),
        ([], "must be a dict"),
    ],
    ids=["typo", "elsewhere", "steps", "optimizer", "list"],
)
def test_wrong_settings_are_named(arguments: Any, words: str) -> None:
    wrong = type("Wrong", (Classify,), {"arguments": lambda self, config: arguments})
    assert words in refused(wrong())


def test_other_mistakes_are_named() -> None:
    wrong = type("Wrong", (Classify,), {"build": lambda self, config: torch.nn.Linear(1, 1)})
    assert "build() returned Linear: return a model of transformers" in refused(wrong())
    columns = {"input_ids": tokens()["input_ids"]}
    assert "give the data a column 'label' or 'labels'" in refused(Classify(), columns)
    wrong = type("Wrong", (Classify,), {"tokenizer": tokenizer(), "dpo_beta": 0.1})
    assert "the batch has no column 'prompt'" in refused(wrong())
