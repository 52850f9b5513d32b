"""How generation settings differ from others, such as those that an adapter was measured under."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig
from transformers.pipelines import Pipeline

from guardwrap.environment.transformers_internals import default_settings
from guardwrap.errors import GuardwrapError
from guardwrap.pipelines.task_calls import call_of

__all__ = ["differences"]

_ABSENT: Mapping[str, Any] = {
    "do_sample": False,
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
}
"""What ``generate`` takes a setting for that is nowhere."""

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
"""Arguments of ``generate`` that do not change what a token is drawn from."""


def differences(
    pipe: Pipeline, given: Mapping[str, Any], wanted: Mapping[str, Any], *, bare: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Return how a call's generation settings differ from others: for each name the call's value and the other one.

    Parameters
    ----------
    pipe
        The pipeline.
    given
        What the call hands to ``generate``.
    wanted
        The other settings, as a call of the pipeline takes them. Nothing in them is run.
    bare
        Whether the call goes to ``generate`` itself, without the pipeline's own defaults.
    """
    try:
        others: Mapping[str, Any] = call_of(pipe, wanted).forward
    except GuardwrapError:  # a card may say anything
        others = wanted
    model = pipe.model.generation_config.to_diff_dict()
    defaults = default_settings(pipe)
    here = _plain({**({} if bare else defaults), **model, **_spread(given)})
    there = _plain({**defaults, **model, **_spread(others)})
    names = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    return {name: (here.get(name, _ABSENT.get(name)), there.get(name, _ABSENT.get(name))) for name in names}


def _spread(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Put the settings of a ``generation_config`` among the others, which win."""
    config = settings.get("generation_config")
    inside = config.to_diff_dict() if isinstance(config, GenerationConfig) else {}
    return {**inside, **{name: value for name, value in settings.items() if name != "generation_config"}}


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what says nothing; an object, such as a logits processor, is like no other."""
    found = {}
    for name, value in settings.items():
        if name in _OTHER_MATTERS or name.startswith(("_", "output_")) or value is None or value == []:
            continue
        plain = isinstance(value, bool | int | float | str | list | tuple | dict)
        if not plain or value != _ABSENT.get(name):
            found[name] = value if plain else type(value).__name__
    return found
