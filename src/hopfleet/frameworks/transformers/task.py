"""The tasks that users write for models of Hugging Face Transformers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Config
from hopfleet.errors import MissingExtra, TaskError
from hopfleet.frameworks.base import Batch, EngineCache
from hopfleet.frameworks.views import ModelT
from hopfleet.phrases import listed

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise MissingExtra("Transformers", "transformers") from error

import torch
from transformers import AutoTokenizer

from hopfleet.frameworks.paced import Paced
from hopfleet.frameworks.torch import weights
from hopfleet.frameworks.torch.framework import TorchFramework
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.task import TorchTask, at_hand
from hopfleet.frameworks.torch.trial import Metrics, Model, Part, Weigh
from hopfleet.frameworks.transformers import labels, loading, preferences
from hopfleet.frameworks.transformers.settings import DEFAULTS, make_optimizer, make_schedule, refused, settings

_TOKENS = (
    "a token in input_ids is not in the vocabulary of the model, or a text has more tokens than the model has "
    "positions: use the tokenizer of the model (config.vocab_size), and set max_length (config.max_position_embeddings)"
)


class Tokenizers:
    """The tokenizers that a worker has loaded, by name: one part of its engine cache."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}


class TransformersTask(TorchTask[ModelT]):
    """A training task with a model of Hugging Face Transformers. Override ``build``; all other hooks have defaults.

    The loss is that of the model. The configuration may have settings of ``transformers.TrainingArguments`` by their
    names, such as ``learning_rate``; ``arguments`` returns them. A batch may have text, in a column ``text``, or
    tokens, in ``input_ids``, and labels in ``label`` or ``labels``; models that generate text learn to predict the
    text itself.
    """

    preload: Sequence[str] = (*TorchTask.preload, "hopfleet.frameworks.transformers.task")

    lr_step: str = "batch"

    #: The tokenizer or processor: an object, the name of a folder, or a name on the hub where there is a network.
    tokenizer: Any = None
    #: Tokens after which text is cut off.
    max_length: int | None = None
    #: Makes the inputs of the model from a list of rows, each a dict, as with a Trainer.
    data_collator: Any = None
    #: Train on preferences with the loss of direct preference optimization, and with this strength. Batches have the
    #: columns ``prompt``, ``chosen`` and ``rejected``. It may be a property that reads self.config.
    dpo_beta: float | None = None

    def build(self, config: Config) -> Part:
        """Return the model, e.g. ``AutoModelForCausalLM.from_pretrained(folder)``; it may have an adapter of PEFT."""
        raise TaskError(f"{type(self).__name__}: override build(self, config) and return a model of transformers")

    def arguments(self, config: Config) -> Mapping[str, Any]:
        """Return settings by the names of ``TrainingArguments``. Default: those that the configuration has."""
        return {name: config[name] for name in (*DEFAULTS, *refused()) if name in config}

    def optimizers(self, model: Model, config: Config) -> Part:
        """Return an optimizer, or an optimizer and a schedule. Default: those that ``arguments`` describe."""
        optimizer = make_optimizer(model, self._settings)
        steps = None if self.batching is None else self.total_steps
        return optimizer, make_schedule(optimizer, self._settings, steps)

    def inputs(self, model: Model, batch: Batch) -> dict[str, Any]:
        """Return the inputs of the model for a batch, as ``model(**inputs)`` takes them."""
        if self.data_collator is not None:
            count = len(next(iter(batch.values())))
            found = dict(self.data_collator([{k: v[row] for k, v in batch.items()} for row in range(count)]))
        elif "input_ids" in batch:
            found = _padded(batch, self._pad_token)
        elif "text" in batch:
            encode = self._padding_tokenizer("text")
            cut = self.max_length is not None
            tokens = encode(
                batch["text"], padding=True, truncation=cut, max_length=self.max_length, return_tensors="pt"
            )
            found = {**batch, **tokens}
        else:
            found = dict(batch)
        if "labels" not in found and "label" in found:
            found["labels"] = found["label"]
        network = _network(model)
        if "labels" not in found and "input_ids" in found and network.can_generate():
            found["labels"] = found["input_ids"]
            if "attention_mask" in found:
                found["labels"] = found["input_ids"].masked_fill(found["attention_mask"] == 0, preferences.IGNORED)
        taken = inspect.signature(network.forward).parameters
        device = network.device
        return {k: v.to(device) if torch.is_tensor(v) else v for k, v in found.items() if k in taken}

    def loss(self, model: Model, batch: Batch) -> Part:
        if self.dpo_beta is not None:
            return preferences.preference_loss(self._margins(model, batch), self.dpo_beta)
        counted = batch if isinstance(batch, labels.Counted) else None
        inputs = counted.inputs if counted is not None and counted.inputs else self.inputs(model, batch)
        number = None if counted is None else counted.labels
        outputs = model(**inputs) if number is None else model(**inputs, num_items_in_batch=number)
        smoothing = self._settings["label_smoothing_factor"]
        if smoothing and "labels" in inputs:
            return labels.smoothed(smoothing, _network(model), outputs, inputs["labels"], number)
        return _loss(outputs, batch)

    def metrics(self, model: Model, batch: Batch) -> Metrics:
        """Return the metrics of one mini-batch. Default: the loss and, for classes or preferences, the accuracy."""
        if self.dpo_beta is not None:
            margin = self._margins(model, batch)
            loss = preferences.preference_loss(margin, self.dpo_beta)
            return {"loss": loss, "accuracy": (margin > 0).float().mean(), "margin": margin.mean()}
        inputs = self.inputs(model, batch)
        outputs = model(**inputs)
        found = {"loss": _loss(outputs, batch)}
        classes, logits = inputs.get("labels"), outputs.get("logits")
        if (
            classes is not None
            and logits is not None
            and classes.ndim == 1
            and logits.ndim == 2
            and logits.shape[1] > 1
        ):
            found["accuracy"] = (logits.argmax(-1) == classes).float().mean()
        return found

    def generate(self, model: Model, prompts: Sequence[str], **options: Any) -> list[str]:
        """Return the texts with which the model continues some prompts; ``options`` are those of ``model.generate``.

        Call it in ``metrics``, e.g. ``self.generate(model, batch["prompt"], max_new_tokens=8)``.
        """
        tokenizer = self._padding_tokenizer("prompts")
        tokens = tokenizer(list(prompts), padding=True, padding_side="left", return_tensors="pt")
        tokens.pop("token_type_ids", None)
        network = _network(model)
        tokens = {name: value.to(network.device) for name, value in tokens.items()}
        found = model.generate(**tokens, pad_token_id=tokenizer.pad_token_id, **options)
        # A decoder repeats its prompt; a model with an encoder does not.
        prompt = 0 if network.config.is_encoder_decoder else tokens["input_ids"].shape[1]
        return list(tokenizer.batch_decode(found[:, prompt:], skip_special_tokens=True))

    # ------------------------------------------------------------------------------------------ the options of steps

    @property
    def precision(self) -> str:  # type: ignore[override]
        return "bf16" if self._settings["bf16"] else "fp16" if self._settings["fp16"] else "float32"

    @property
    def clip_norm(self) -> float | None:  # type: ignore[override]
        return self._settings["max_grad_norm"] or None

    @property
    def accumulate(self) -> int:  # type: ignore[override]
        return int(self._settings["gradient_accumulation_steps"])

    @property
    def batches_per_step(self) -> int:
        return self.accumulate

    @property
    def capture(self) -> bool:  # type: ignore[override]
        # A step that turns text into tokens, or rows into a batch, has to run anew each time. So has one whose inputs
        # were made when labels were counted; the default ones are made again.
        made_before = self._sums_labels and type(self).inputs is not TransformersTask.inputs
        return self.tokenizer is None and self.data_collator is None and not made_before

    @property
    def weighs_batches(self) -> bool:
        live = at_hand(self).live
        return self._sums_labels and live is not None and labels.takes_number(_network(live.model))

    def weighed(self, model: Model, batches: Sequence[Batch]) -> Weigh | None:
        live = at_hand(self).live
        assert live is not None, "workers train"
        return labels.update(live, _network(model), batches, [self.inputs(model, batch) for batch in batches])

    def weighed_by(self, number: torch.Tensor) -> Weigh:
        return labels.Update(number, [], [])

    @property
    def _sums_labels(self) -> bool:
        """Whether the batches of an update count by their labels, if the model takes the number of labels."""
        return self.accumulate > 1 and self.dpo_beta is None and type(self).loss is TransformersTask.loss

    @property
    def _settings(self) -> dict[str, Any]:
        return settings(self.arguments(self.config))

    # --------------------------------------------------------------------------------------------------- for workers

    def parts(self, config: Config) -> Part:
        try:
            model = self.build(config)
        except (OSError, ValueError) as error:
            if (found := loading.explained(error)) is None:
                raise
            raise found from error
        if not isinstance(model, torch.nn.Module) or not hasattr(_network(model), "can_generate"):
            raise TaskError(
                f"build() returned {type(model).__name__}: return a model of transformers, e.g. "
                "AutoModelForCausalLM.from_pretrained(folder), with an adapter of PEFT or without"
            )
        if self._settings["gradient_checkpointing"]:
            _network(model).gradient_checkpointing_enable()
        if self.dpo_beta is not None:
            preferences.add_reference(model)
        return model, *_listed(self.optimizers(model, config))

    @property
    def framework(self) -> TransformersFramework:
        return TransformersFramework(self, owns_loop=type(self).train is not TorchTask.train)

    def _margins(self, model: Model, batch: Batch) -> torch.Tensor:
        tokens = preferences.encoded(self._padding_tokenizer("prompt"), batch, self.max_length)
        return preferences.margins(model, {k: v.to(_network(model).device) for k, v in tokens.items()})

    def _padding_tokenizer(self, column: str) -> Any:
        """Return the tokenizer, loaded and able to pad."""
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise TaskError(
                f"the batch has text in {column!r}, but the task has no tokenizer: set tokenizer in the class, e.g. "
                "tokenizer = 'folder', or tokenize the data before they are partitioned"
            )
        if isinstance(tokenizer, str | Path):
            tokenizer = self._loaded(str(tokenizer))
        if isinstance(tokenizer, type):
            raise TaskError(
                f"tokenizer={tokenizer.__name__}: it is a class; give an object or a folder, e.g. "
                f"{tokenizer.__name__}.from_pretrained(folder)"
            )
        if getattr(tokenizer, "pad_token", "") is None:
            raise TaskError(
                "the tokenizer has no token for padding: set one, e.g. tokenizer.pad_token = tokenizer.eos_token, "
                "before it is saved or given to the task"
            )
        return tokenizer

    def _loaded(self, name: str) -> Any:
        live = at_hand(self).live
        known = Tokenizers() if live is None else live.cache.part(Tokenizers)
        if name not in known.loaded:
            try:
                found = AutoTokenizer.from_pretrained(name)
            except (OSError, ValueError) as error:
                reason = f"{str(error).strip().splitlines()[0]}; give a folder that tokenizer.save_pretrained() wrote"
                if not Path(name).is_dir():
                    reason = loading.obstacle(name, error)
                raise TaskError(f"tokenizer={name!r}: cannot be loaded: {reason}") from None
            loading.check_tokenizer(found, name)
            known.loaded[name] = found
        return known.loaded[name]

    def _pad_token(self) -> int:
        return int(self._padding_tokenizer("input_ids").pad_token_id) if self.tokenizer is not None else 0


class TransformersFramework(TorchFramework):
    """PyTorch, for a model of Transformers.

    A schedule steps with each update, and a model that is handed out has no reference for preferences.
    """

    def open(
        self, config: Config, *, seed: int, placement: Placement, threads: int, cache: EngineCache | None = None
    ) -> TorchSession:
        session = super().open(config, seed=seed, placement=placement, threads=threads, cache=cache)
        if not self._owns_loop:
            # Sessions of one device and of teams alike.
            session.end_unit = functools.partial(_end_unit, session, session.end_unit)  # type: ignore[method-assign]
        return session

    def begin_worker(self) -> None:
        super().begin_worker()
        loading.leave_hub()

    def model(self, config: Config, checkpoint: Path) -> torch.nn.Module:
        model = super().model(config, checkpoint)
        if hasattr(model, preferences.REFERENCE):
            delattr(model, preferences.REFERENCE)
        return model

    def explain(self, error: BaseException) -> None:
        super().explain(error)
        if isinstance(error, IndexError) and "index out of range in self" in str(error):
            error.__notes__ = [_TOKENS, *getattr(error, "__notes__", ())]

    def export(self, config: Config, checkpoint: Path, path: Path) -> float:
        weights.write(path, self.model(config, checkpoint).state_dict())
        return 0.0


def _end_unit(
    session: TorchSession, end: Callable[..., dict[str, RowSum]], result: Metrics | None, rows: int, *, last: bool
) -> dict[str, RowSum]:
    """Close a unit, after the schedules have stepped for an update with the batches that were left."""
    for schedule in session.schedulers:
        if isinstance(schedule, Paced):
            schedule.step("unit")
    return end(result, rows, last=last)


def _network(model: Any) -> Any:
    """Return the model of transformers inside of an adapter of PEFT or of a compiled model."""
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _listed(made: Part) -> Sequence[Part]:
    return made if isinstance(made, tuple | list) else [made]


def _loss(outputs: Any, batch: Batch) -> Any:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
    if loss is None:
        raise TaskError(
            "the model returned no loss: it got no labels; give the data a column 'label' or 'labels' (there is "
            f"{listed('labels', batch)}), or override loss(self, model, batch)"
        )
    return loss


def _padded(batch: Batch, pad_token: Any) -> dict[str, Any]:
    """Return a batch with tokens; rows of different lengths are padded on the right."""
    found = dict(batch)
    if not isinstance(batch["input_ids"], list):
        return found
    fills = {"input_ids": pad_token(), "labels": preferences.IGNORED}
    rows = batch["input_ids"]
    found.setdefault("attention_mask", [torch.ones_like(row) for row in rows])
    for name, column in found.items():
        if isinstance(column, list) and all(torch.is_tensor(row) and row.ndim == 1 for row in column):
            found[name] = torch.nn.utils.rnn.pad_sequence(column, batch_first=True, padding_value=fills.get(name, 0))
    return found
