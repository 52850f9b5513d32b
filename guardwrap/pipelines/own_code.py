"""Methods of pipelines and tokenizers of users, not of transformers: in subclasses, mixins and single objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from guardwrap.errors import UsageError

_LIBRARIES = ("transformers", "guardwrap")
_NOT_RUN = ("__call__", "run_single", "run_multi", "iterate", "get_iterator")
"""Methods of pipelines that a wrapper does not call, as it draws the texts of many prompts together."""


def own_method(thing: Any, names: Iterable[str]) -> str | None:
    """Return the first of these methods that no library has defined, with its class; None if there is none."""
    for name in names:
        # Python looks up special methods on the class. Decorators of tracing libraries keep a function's module.
        method = getattr(type(thing) if name.startswith("__") else thing, name, None)
        module = getattr(getattr(method, "__func__", method), "__module__", None) or ""
        if method is not None and module.partition(".")[0] not in _LIBRARIES:
            return f"{type(thing).__name__}.{name}"
    return None


def require_callable(pipe: Any) -> None:
    """Require that a call of the pipeline is its three stages, one after the other."""
    method = own_method(pipe, _NOT_RUN)
    if method is not None:
        raise UsageError(
            f"{method} is not supported, because guardwrap runs the pipeline's stages itself; move what it does into "
            "preprocess, _forward or postprocess"
        )


def text_in(record: Any, key: str, method: str, prompt: Any) -> Any:
    """Return the text, or the messages, of a record that a user's own method has rendered."""
    if not isinstance(record, Mapping) or key not in record:
        raise UsageError(f"{method} returns records without {key!r}, so they cannot be judged; put the text there")
    for name, value in record.items():
        # Numbers say nothing that a rule could judge.
        harmless = value is None or isinstance(value, bool | int | float) or (name == "input_text" and value == prompt)
        if name != key and not harmless:
            raise UsageError(f"{method} returns {name!r} beside {key!r}, which no rule would judge; leave it out")
    return record[key]
