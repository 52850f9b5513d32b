"""Plain texts as draws, so that constraints can judge texts that no model has drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from guardwrap.constraints.explanation import Explanation, explain_draw
from guardwrap.environment.transformers_internals import tokenizer_lock
from guardwrap.errors import UsageError
from guardwrap.outcomes import Draw

if TYPE_CHECKING:
    from guardwrap.session.base_session import BaseSession


def plain_draw(text: str, prompt: str, tokenizer: Any, *, begun: str = "", kind: type[Draw] = Draw) -> Draw:
    """Return a text as a finished draw: the whole answer of a message, without reasoning and calls."""
    ids: tuple[int, ...] = ()
    if tokenizer is not None:
        with tokenizer_lock(tokenizer):
            ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    return kind(prompt, ids, text, parts=(("answer", (text,)),), begun=begun)


def explained(
    session: BaseSession, tokenizer: Any, text: str | Draw, prompt: str, options: Mapping[str, Any]
) -> Explanation:
    """Check a text with the constraint of a call; see ``GuardedGenerator.explain``."""
    if not isinstance(text, str | Draw):
        raise UsageError(f"explain() takes a text or a Draw, not {type(text).__name__}; pass attempt.draw or a string")
    constraint = session.constraint_of(options)
    draw = plain_draw(text, prompt, tokenizer) if isinstance(text, str) else text
    return explain_draw(constraint, draw)
