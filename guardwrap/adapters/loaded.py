"""Adapters in use: the models that attempts are drawn from, and their description in reports."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from guardwrap.adapters.adapter_folder import Files, fetched, read_adapter
from guardwrap.adapters.card import Card
from guardwrap.adapters.lora import attach, merged, require_plain
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.files.file_fields import demands, trained_for_another
from guardwrap.engine.refill.mode_selection import as_tried
from guardwrap.engine.sequence_scores import is_exact
from guardwrap.errors import AdapterError, AdapterMismatch, UsageError, first_line
from guardwrap.proposals import Adapter
from guardwrap.support.files import CONFIG
from guardwrap.support.limits import irregular
from guardwrap.support.model_loading import loading_model
from guardwrap.support.transformers_internals import writes_of


class Loaded:
    """A LoRA adapter on a model."""

    def __init__(self, model: Any, adapter: Adapter, files: Files) -> None:
        self._model, self._adapter, self._files = model, adapter, files
        self._lock = threading.Lock()
        self._attached: tuple[Any, PeftModel] | None = None
        self._merged: tuple[Any, Any] | None = None
        self._not_merged: str | None = None
        misfit = files.misfit(model)
        if misfit and not adapter.allow_mismatch:
            raise AdapterMismatch(f"{misfit}; {self._way_out()}")
        self.name: str = files.name  # the folder's name or Hub id
        self.card: Card | None = files.card  # None for a plain peft adapter
        self.other_base: bool = misfit is not None  # whether it was trained on another model
        self._on_model()

    def require_constraint(self, constraint: Constraint) -> None:
        """Raise unless a constraint is the one that the adapter was trained for, or a stricter one."""
        if self.card is None:
            return
        digest, description = self.card.constraint_digest, self.card.constraint_description
        if other := trained_for_another(self._adapter, self.name, digest, description, constraint):
            raise AdapterMismatch(f"{other}; {self._way_out()}")

    def model(self, *, merge: bool) -> tuple[Any, tuple[str, ...]]:
        """Return the adapted model, whose distribution is a', and notes for reports.

        ``merge``: whether to merge the adapter into a copy of the adapted layers, made at the first call. It is as
        fast as the model itself, and takes the memory of those layers.
        """
        with self._lock:
            adapted = self._on_model()
            if merge and self._not_merged is None:
                # Merge again if the model's weights were changed, for instance by training.
                written = tuple(map(writes_of, self._model.parameters()))
                try:
                    if self._merged is None or self._merged[0] != written:
                        self._merged = None
                        self._merged = written, as_tried(merged(adapted), self._model)
                    return self._merged[1], _rounded(self._model)
                except (RuntimeError, ValueError) as error:  # out of memory, quantized …
                    self._not_merged = f"the adapter is not merged into the weights, and slower: {first_line(error)}"
            return adapted.get_base_model(), (self._not_merged,) if merge and self._not_merged else ()

    def described(self, constraint: Constraint, prompt: Any = None, differs: Sequence[str] = ()) -> str:
        """Return the adapter in words, with its distance KL(g‖g') from the card.

        ``differs``: how this call differs from the card's measurements, in a few words each.
        """
        why = self._why_unknown(constraint)
        if why is not None or self.card is None or self.card.figures.kl_gold_guarded is None:
            return f"the adapter {self.name!r} (KL(g‖g') is not known: {why or 'its card does not say'})"
        there = self._trained_on(self.card, constraint, prompt)
        what = "prompts and rules" if self.card.fields else "prompts"
        figure, unseen = self.card.figures.kl_gold_guarded, self.card.figures.unseen_kl_gold_guarded
        if unseen is None or (prompt is None and there):
            where = {True: "", False: ", of which this is none", None: ", of which this is perhaps none"}[there]
            where = f"its card's {what}{where}"
        elif there:
            where = f"the {what} that it was trained on, of which this is one"
        else:
            figure, this = unseen, "this is none" if there is False else "this is perhaps none"
            where = f"{what} like those that it was trained on, of which {this}"
        where += "".join(f", {each}" for each in differs)
        return f"the adapter {self.name!r} (KL(g‖g') = {figure.estimate} nats, measured on {where})"

    @staticmethod
    def _trained_on(card: Card, constraint: Constraint, prompt: Any) -> bool | None:
        """Return whether it was trained on a prompt, under these values of a family's fields; None if unknown."""
        known = [] if prompt is None else [card.prompts.has(prompt)]
        if card.fields and constraint.filled_with is not None:
            known.append(card.prompts.has_rule(constraint.filled_with))
        return False if False in known else None if None in known else True

    def _why_unknown(self, constraint: Constraint) -> str | None:
        """Return why what the card says of the distance to g does not hold here, in words; None if it does."""
        if self.card is None:
            return "it has no card"
        if self.card.constraint_digest not in (constraint.digest, constraint.family):
            stricter = demands(constraint, self.card.constraint_digest)
            return f"it was trained for {'a weaker' if stricter else 'another'} constraint"
        return "it was trained on another model" if self.other_base else None

    def _on_model(self) -> PeftModel:
        """Return the adapter on the model; attach it again if the model's memory has moved, e.g. to another device."""
        where = tuple((id(parameter), parameter.data_ptr()) for parameter in self._model.parameters())
        if self._attached is None or self._attached[0] != where:
            self._attached = self._merged = None
            self._attached = where, attach(self._model, self._files.config, self._files.tensors)
        return self._attached[1]

    def _way_out(self) -> str:
        anyway = f"Adapter({str(self._adapter.source)!r}, allow_mismatch=True)"
        return f"use the one that it is for, or {anyway}; in a constraint file, adapter: {{..., allow_mismatch: true}}"


def _rounded(model: Any) -> tuple[str, ...]:
    if is_exact(model):
        return ()
    return (f"the adapter is merged into {str(model.dtype).removeprefix('torch.')} weights, which rounds it slightly",)


class Checkpoint:
    """A full model that is used like an adapter: with the same tokens, under the same settings."""

    card = None
    other_base = False

    def __init__(self, name: str, model: Any) -> None:
        self.name: str = name
        self._model = model

    def require_constraint(self, constraint: Constraint) -> None:
        """Accept any constraint, as a checkpoint has no card."""

    def model(self, *, merge: bool) -> tuple[Any, tuple[str, ...]]:
        """Return the model, and no notes."""
        return self._model, ()

    def described(self, constraint: Constraint, prompt: Any = None, differs: Sequence[str] = ()) -> str:
        """Return the checkpoint in words."""
        return f"the checkpoint {self.name!r} (KL(g‖g') is not known: it has no card)"


def in_training(model: Any, other: Any) -> Checkpoint:
    """Wrap a model or adapter in training as a proposal that is drawn from in its current state."""
    other = other.get_base_model() if hasattr(other, "get_base_model") else other
    sizes = [each.config.get_text_config().vocab_size for each in (model, other)]
    if sizes[0] != sizes[1]:
        raise UsageError(
            f"the model in training has {sizes[1]} tokens, but the model itself {sizes[0]}; use the same vocabulary"
        )
    return Checkpoint("in training", other)


def load_adapter(model: Any, tokenizer: Any, adapter: Adapter) -> Loaded | Checkpoint:
    """Load an adapter for a model.

    Parameters
    ----------
    model, tokenizer
        The model and its tokenizer.
    adapter
        Source and options of the adapter.

    Raises
    ------
    AdapterError
        If its files cannot be used.
    AdapterMismatch
        If it is for another model, and ``allow_mismatch`` is not set.
    UsageError
        If the model cannot take an adapter.
    """
    require_plain(model)
    folder = fetched(adapter.source, adapter.revision)
    is_folder = Path(adapter.source).expanduser().is_dir()
    name = folder.resolve().name if is_folder else str(adapter.source)
    if (folder / CONFIG).exists() or not (folder / "config.json").exists():
        return Loaded(model, adapter, read_adapter(folder, name))
    source = str(folder) if is_folder else str(adapter.source)
    return Checkpoint(name, _checkpoint(source, adapter.revision, model, tokenizer))


def _checkpoint(source: str, revision: str | None, model: Any, tokenizer: Any) -> Any:
    for path in Path(source).expanduser().rglob("*") if Path(source).expanduser().is_dir() else ():
        if what := irregular(path):
            raise AdapterError(f"{str(path)!r} is {what}, not a file; give a folder written by save_pretrained")
    options = {"revision": revision, "trust_remote_code": False}
    try:
        with loading_model():
            found = AutoModelForCausalLM.from_pretrained(source, use_safetensors=True, dtype=model.dtype, **options)
    except Exception as error:  # libraries raise many kinds of errors for foreign files
        raise AdapterError(f"cannot load the checkpoint {source!r}: {first_line(error)}") from None
    try:
        vocabulary = AutoTokenizer.from_pretrained(source, **options).get_vocab()
    except Exception:  # without its own tokenizer it uses the model's
        vocabulary = tokenizer.get_vocab()
    sizes = [each.config.get_text_config().vocab_size for each in (model, found)]
    if sizes[0] != sizes[1] or vocabulary != tokenizer.get_vocab():
        raise AdapterError(
            f"the checkpoint {source!r} has another tokenizer than the model; give a checkpoint of the same family"
        )
    return found.to(model.device).eval()
