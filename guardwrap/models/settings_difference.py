"""Differences between generation settings, such as a call's and those of an adapter's card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig
from transformers.pipelines import Pipeline

from guardwrap.errors import GuardwrapError
from guardwrap.models.task_calls import call_of
from guardwrap.support.transformers_internals import default_settings

_ABSENT: Mapping[str, Any] = {
    "do_sample": False,
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
}
"""The values that ``generate`` uses for settings that are not set."""

_OTHER_MATTERS = {
    "attention_mask",
    "bos_token_id",
    "num_return_sequences",
    "pad_token_id",
    "return_dict_in_generate",
    "tokenizer",
    "transformers_version",
    "use_cache",
}
"""Arguments of ``generate`` that do not change the distribution of tokens."""


def differences(
    pipe: Pipeline, given: Mapping[str, Any], wanted: Mapping[str, Any], *, bare: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ: for each name, the call's value and the other one.

    ``wanted``: the other settings, in the form of options of the pipeline. They are compared, and never used to run
    anything.
    """
    try:
        others: Mapping[str, Any] = call_of(pipe, wanted).forward
    except GuardwrapError:  # a card may contain anything
        others = wanted
    model = pipe.model.generation_config.to_diff_dict()
    defaults = default_settings(pipe)
    here = _plain({**({} if bare else defaults), **model, **_spread(given)})
    there = _plain({**defaults, **model, **_spread(others)})
    names = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    return {name: (here.get(name, _ABSENT.get(name)), there.get(name, _ABSENT.get(name))) for name in names}


def _spread(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a ``generation_config`` into the other settings, which take precedence."""
    config = settings.get("generation_config")
    inside = config.to_diff_dict() if isinstance(config, GenerationConfig) else {}
    return {**inside, **{name: value for name, value in settings.items() if name != "generation_config"}}


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Drop settings at their defaults. Objects, such as logits processors, are represented by their type."""
    relevant = {}
    for name, value in settings.items():
        if name in _OTHER_MATTERS or name.startswith(("_", "output_")) or value is None or value == []:
            continue
        plain = isinstance(value, bool | int | float | str | list | tuple | dict)
        if not plain or value != _ABSENT.get(name):
            relevant[name] = value if plain else type(value).__name__
    return relevant
