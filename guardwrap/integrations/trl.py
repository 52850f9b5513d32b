"""Rewards for reinforcement learning from constraints, as the trainers of TRL call them.

``rewards`` gives a function for each rule, ``reward`` one for all of them; both go to ``GRPOTrainer(reward_funcs=...)``
and the other trainers that take such functions.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.checking import Unknown, draw_without, run_check
from guardwrap.constraints.files.constraint_file import as_constraint_file
from guardwrap.constraints.files.file_fields import read_message
from guardwrap.constraints.files.template import fill, names_of_fields
from guardwrap.constraints.kinds.text import Finished
from guardwrap.errors import CheckFailed, UsageError, nearest, quoted, strict_arguments
from guardwrap.models.parsed_message import written_message
from guardwrap.outcomes import Draw
from guardwrap.support.validation import Invalid

__all__ = ["Reward", "reward", "rewards"]

logger = logging.getLogger(__name__)

_UNKNOWN = (
    "{} reads what is not known here: the prompt of a chat as text, tokens without completion_ids, or how a text ended "
    "without eos_token_id; leave it out of the reward"
)
_ENDS = "{} asks how a text ended; pass eos_token_id=tokenizer.eos_token_id"

Completion = str | Sequence[Mapping[str, Any]]
"""What the policy wrote: text, or the messages that follow a chat; the last one of the assistant is judged."""


@dataclass(frozen=True)
class Reward:
    """A reward function; ``reward`` and ``rewards`` make it.

    Parameters
    ----------
    constraint
        What completions are judged by.
    score
        What a completion gets; see ``reward``.
    name
        The name in a trainer's logs.
    eos_token_ids
        Tokens that end a text. Empty if a trainer's are not known.
    part
        The number of the rule of the constraint that judges, once its fields are filled; None for all of them.
    """

    constraint: Constraint
    score: Literal["all", "share"]
    name: str
    eos_token_ids: tuple[int, ...] = ()
    part: int | None = None

    @property
    def __name__(self) -> str:  # where trainers look for the name in their logs
        return self.name

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Completion],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return the reward of each completion.

        Parameters
        ----------
        prompts, completions
            Texts or chats; as many of one as of the other.
        completion_ids
            The tokens of each completion. Needed by rules that count tokens, and by ``Finished``.
        columns
            Other columns of the data set, one value for each completion: the values of the constraint's fields. What
            trainers pass beside them is ignored.

        Returns
        -------
        list of float or None
            Numbers between 0 and 1; None for a completion that a rule crashed on, which trainers leave out.

        Raises
        ------
        UsageError
            If a column is missing, or a rule reads what is not known here.
        """
        fields = names_of_fields(self.constraint)
        for field in fields:
            if field not in columns:
                meant = nearest(field, list(columns))
                raise UsageError(f"the constraint has a field {field!r}, and the data set no such column{meant}")
        numbers: dict[Constraint, list[int]] = defaultdict(list)
        for number in range(len(completions)):
            values = {field: columns[field][number] for field in fields}
            filled = fill(self.constraint, values)
            numbers[filled if self.part is None else filled.parts[self.part]].append(number)
        results: list[float | None] = [None] * len(completions)
        for constraint, places in numbers.items():
            readable: dict[int, Draw] = {}
            for number in places:
                token_ids = None if completion_ids is None else completion_ids[number]
                draw = self._draw(prompts[number], completions[number], token_ids)
                if draw is not None:
                    readable[number] = draw
            for number, value in zip(readable, self._scores(constraint, list(readable.values())), strict=True):
                results[number] = value
        return results

    def _draw(self, prompt: Any, completion: Completion, token_ids: Sequence[int] | None) -> Draw | None:
        """Return a completion as a draw; None if it is no message."""
        chat, ends = not isinstance(prompt, str), bool(self.eos_token_ids and token_ids is not None)
        kind = _with(text=not chat, tokens=token_ids is not None, ends=ends)
        before, ids = "" if chat else prompt, tuple(token_ids or ())
        finished = bool(ids) and ids[-1] in self.eos_token_ids
        if isinstance(completion, str):
            return kind(before, ids, completion, finished)
        written = [message for message in completion if message.get("role") == "assistant"]
        try:
            draw = written_message(read_message(written[-1])) if written else written_message({})
        except Invalid:  # its words may quote the completion
            logger.warning("a completion has no reward: it is not a message of OpenAI's API")
            return None
        return kind(before, ids, draw.text, finished, fault=draw.fault, parts=draw.parts, message=draw.message)

    def _scores(self, constraint: Constraint, draws: Sequence[Draw]) -> list[float | None]:
        parts = constraint.parts
        held: list[list[bool | None]] = [[] for _ in draws]
        for part in parts:
            # With "all", a completion that a cheaper rule rejects has its reward.
            asked = [i for i, known in enumerate(held) if self.score == "share" or False not in known]
            for i, holds in zip(asked, _holds(part, [draws[i] for i in asked]), strict=True):
                held[i].append(holds)
        return [self._score(known) for known in held]

    def _score(self, held: Sequence[bool | None]) -> float | None:
        if self.score == "all" and False in held:
            return 0.0
        return None if None in held else sum(map(bool, held)) / len(held)


@cache
def _with(*, text: bool, tokens: bool, ends: bool) -> type[Draw]:
    """Return the class of draws of which this is known: the prompt as text, the tokens, and how they ended."""
    known = {"prompt": text, "begun": text, "token_ids": tokens, "finished": ends}
    return draw_without(*(name for name, is_known in known.items() if not is_known))


def _holds(part: Constraint, draws: Sequence[Draw]) -> list[bool | None]:
    """Return whether draws satisfy a rule; None for those that it crashes on."""
    judged = [draw for draw in draws if draw.fault is None]
    try:
        passed = iter(run_check(part, judged))
    except Unknown:
        raise UsageError(_UNKNOWN.format(quoted(part.title))) from None
    except CheckFailed as error:
        if len(draws) == 1:
            logger.warning("a completion has no reward: %s", error)
            return [None]
        return [holds for draw in draws for holds in _holds(part, [draw])]
    return [draw.fault is None and next(passed) for draw in draws]


@strict_arguments
def reward(
    constraint: Any,
    *,
    score: Literal["all", "share"] = "all",
    name: str = "guardwrap",
    eos_token_id: int | Sequence[int] | None = None,
    allow_code: bool = False,
) -> Reward:
    """Return one reward function for all rules of a constraint.

    Parameters
    ----------
    constraint
        A constraint, a list of them, a mapping, the path of a constraint file, or ``"catalogue:NAME"``. Its fields,
        such as ``{must_mention}``, are filled from the columns of the data set with these names.
    score
        What a completion gets: with ``"all"`` 1 if it satisfies every rule and otherwise 0, with ``"share"`` the share
        of the rules that it satisfies.
    name
        The name in a trainer's logs.
    eos_token_id
        The tokens that end a text, for ``Finished``.
    allow_code
        Whether a constraint file may name Python functions.

    Raises
    ------
    UsageError
        If the constraint asks how a text ended, and ``eos_token_id`` is missing; or if ``score`` is something else.
    """
    if score not in ("all", "share"):
        raise UsageError(f"score={score!r}: give 'all' or 'share'")
    rule = as_constraint_file(constraint, allow_code=allow_code).constraint
    ends = () if eos_token_id is None else (eos_token_id,) if isinstance(eos_token_id, int) else tuple(eos_token_id)
    for part in walk(rule):
        if isinstance(part, Finished) and not ends:
            raise UsageError(_ENDS.format(quoted(part.title)))
    return Reward(rule, score, name, ends)


def rewards(
    constraint: Any, *, eos_token_id: int | Sequence[int] | None = None, allow_code: bool = False
) -> list[Reward]:
    """Return a reward function for each rule of a constraint, with the rule's name, so that logs show each.

    Parameters and errors are those of ``reward``. A file with fields needs a value for each under
    ``examples: fields:``.
    """
    file = as_constraint_file(constraint, allow_code=allow_code)
    whole = reward(file, eos_token_id=eos_token_id)
    try:
        rules = file.filled(file.sample).constraint.parts
    except UsageError as error:
        raise UsageError(f"{error}; give a value for each field under examples: fields:, or use reward()") from None
    return [replace(whole, name=rule.title, part=number) for number, rule in enumerate(rules)]
