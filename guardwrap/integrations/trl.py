"""Rewards from constraints, and texts that satisfy them, as the trainers of TRL call for them.

``rewards`` gives a function for each rule, ``reward`` one for all of them; both go to ``GRPOTrainer(reward_funcs=...)``
and the other trainers that take such functions. ``GRPOTrainer(rollout_func=rollouts(...))`` trains on texts that
satisfy a constraint.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Any, Literal

import numpy as np
import torch
from transformers.generation import TemperatureLogitsWarper

from guardwrap.budget import Budget
from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.checking import Unknown, draw_without, run_check
from guardwrap.constraints.files.constraint_file import ConstraintFile, as_constraint_file
from guardwrap.constraints.files.file_fields import read_message
from guardwrap.constraints.files.template import fill, names_of_fields
from guardwrap.constraints.kinds.text import Finished
from guardwrap.engine.generation_law import GenerationLaw
from guardwrap.engine.sequence_scores import of_tokens, scored
from guardwrap.errors import CheckFailed, UsageError, nearest, quoted, strict_arguments
from guardwrap.generator import GuardedGenerator
from guardwrap.models.parsed_message import written_message
from guardwrap.models.prepare import PreparedPrompt
from guardwrap.outcomes import Closeness, Distribution, Draw
from guardwrap.samplers import Attempt, Sampler, rejection, sampler_named
from guardwrap.samplers.protocol import checked_weight
from guardwrap.support.validation import Invalid

__all__ = ["Reward", "Rollouts", "Weighted", "reward", "rewards", "rollouts", "weighted"]

logger = logging.getLogger(__name__)

_UNKNOWN = (
    "{} reads what is not known here: the prompt of a chat as text, tokens without completion_ids, or how a text ended "
    "without eos_token_id; leave it out of the reward"
)
_PARTIAL = (
    "this process has only a part of a prompt's completions, and weights of a proposal need all of them; make "
    "per_device_train_batch_size * steps_per_generation a multiple of num_generations, and per_device_eval_batch_size "
    "one of num_generations_eval"
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
            Other columns of the data set, one value for each completion: the values of the constraint's fields. Of
            what trainers pass beside them, only ``log_weight`` is read, which ``rollouts`` gives.

        Returns
        -------
        list of float or None
            Numbers between 0 and 1; None for a completion that a rule crashed on, and for one that ``rollouts`` put in
            for a missing text. Trainers leave these out.

        Raises
        ------
        UsageError
            If a column is missing, or a rule reads what is not known here.
        """
        fields = names_of_fields(self.constraint)
        for name in fields:
            if name not in columns:
                meant = nearest(name, list(columns))
                raise UsageError(f"the constraint has a field {name!r}, and the data set no such column{meant}")
        numbers: dict[Constraint, list[int]] = defaultdict(list)
        for number in range(len(completions)):
            if "log_weight" in columns and columns["log_weight"][number] is None:  # no text, see ``rollouts``
                continue
            values = {name: columns[name][number] for name in fields}
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


@dataclass(frozen=True)
class Weighted:
    """A reward function that corrects for a proposal; ``weighted`` makes it."""

    function: Callable[..., Sequence[float | None]]

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Return the corrected reward of each completion; None if it has no reward or stands for a missing text."""
        if not {"log_weight", "rollout_group"} <= columns.keys():
            raise UsageError("weighted() needs the log-weights of rollouts; pass rollout_func=rollouts(...)")
        rewards = self.function(prompts=prompts, completions=completions, **columns)
        results: list[float | None] = [None] * len(completions)
        for group in _groups(columns["rollout_group"]):
            known = [i for i in group if rewards[i] is not None and columns["log_weight"][i] is not None]
            if not known:
                continue
            values = np.array([rewards[i] for i in known], dtype=float)
            logs = np.array([columns["log_weight"][i] for i in known])
            weights = np.exp(logs - logs.max())
            weights /= weights.mean()
            mean = float((weights * values).mean())
            for i, value in zip(known, mean + weights * (values - mean), strict=True):
                results[i] = float(value)
        return results


def weighted(function: Callable[..., Sequence[float | None]]) -> Weighted:
    """Return a reward function that corrects for the proposal of ``rollouts``.

    With the weights w of a prompt's n texts, divided by their sum, and the mean m = Σ w r, which estimates E_g r, the
    reward r of a text becomes m + n w (r - m). The mean of these is m, so the advantages are n w (r - m). Without a
    proposal the weights are equal and rewards stay as they are. All texts of a prompt must be drawn in one process, as
    TRL calls reward functions in each; ``rollouts`` raises UsageError otherwise.

    Parameters
    ----------
    function
        A reward function, such as the result of ``reward``.
    """
    return Weighted(function)


@dataclass
class Rollouts:
    """A rollout function; ``rollouts`` makes it."""

    file: ConstraintFile
    options: Mapping[str, Any]
    _guarded: GuardedGenerator | None = field(default=None, init=False, repr=False)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Draw a completion for each prompt from the policy in training.

        Parameters
        ----------
        prompts
            Texts or chats. Equal ones that follow each other are one prompt, of which several texts are drawn.
        trainer
            The trainer.

        Returns
        -------
        dict of list
            What ``GRPOTrainer`` needs, and fields for reward functions; see ``rollouts``.

        Raises
        ------
        UsageError
            If settings of the trainer do not go with rollouts, or weights are needed and this process has only a part
            of a prompt's completions.
        """
        by_size: dict[int, list[list[int]]] = defaultdict(list)
        for group in _groups(prompts):
            by_size[len(group)].append(group)
        rows: dict[int, dict[str, Any]] = {}
        policy = _policy(trainer)
        training = policy.training
        generations = trainer.num_generations if training else trainer.num_generations_eval
        policy.eval()  # no dropout; older transformers turn the cache off in training
        try:
            if self._guarded is None or self._guarded.model is not policy:
                tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
                self._guarded = GuardedGenerator(policy, self.file, tokenizer=tokenizer, **self.options)
            if _needs_weights(self._guarded) and any(size % generations for size in by_size):
                raise UsageError(_PARTIAL)
            for size, groups in by_size.items():
                numbers = [number for group in groups for number in group]
                drawn = self._draw(self._guarded, [prompts[group[0]] for group in groups], size, trainer)
                rows.update(zip(numbers, drawn, strict=True))
        finally:
            policy.train(training)
        columns = {name: [rows[number][name] for number in range(len(prompts))] for name in rows[0]}
        # Equal prompts do not show a group: rows of the data set with the same prompt may differ in other columns.
        return columns | {"rollout_group": [number // generations for number in range(len(prompts))]}

    def _draw(self, guarded: GuardedGenerator, prompts: Sequence[Any], size: int, trainer: Any) -> list[dict[str, Any]]:
        """Return ``size`` completions of each prompt."""
        session = guarded.session
        options = _settings(trainer, chat=not isinstance(prompts[0], str)) | {"num_return_sequences": size}
        log_weights: list[dict[tuple[int, ...], float]] = []
        if _needs_weights(guarded):
            options["sampler"] = _noting(log_weights)
        inputs = list(session.call_class.read_prompts(prompts).prompts)
        job = replace(session.job(options), on_exhausted="none", repair=None)
        _require_whole_vocabulary(next(iter(job.call.prompts([(0, inputs[0])], 1))))
        outcomes = list(job.outcomes(inputs))
        texts = [(_target(prompt), draw.token_ids) for prompt, outcome in outcomes for draw in outcome.draws]
        logprobs: list[list[float]] = [[]] * len(texts)
        with torch.no_grad():
            for number, scores in (pair for batch in scored(guarded.model, texts) for pair in batch):
                logprobs[number] = of_tokens(scores, texts[number][1]).tolist()
        rest, rows = iter(logprobs), list[dict[str, Any]]()
        end = [*trainer.eos_token_ids, guarded.tokenizer.pad_token_id][0]
        for number, (prompt, outcome) in enumerate(outcomes):
            if not outcome.ok:
                logger.warning("rollouts: %s", outcome.report.headline())
            shared = {"prompt_ids": list(_target(prompt).ids), "attempts": outcome.report.usage.attempts}
            for draw in outcome.draws:
                ids, logs = draw.token_ids, next(rest)
                weight = log_weights[number][ids] if log_weights else 0.0
                rows.append({**shared, **_row(ids, logs, 1), "log_a": sum(logs), "log_weight": weight})
            missing = {**shared, **_row([end], [0.0], 0), "log_a": None, "log_weight": None}
            rows += [missing] * (size - len(outcome.draws))
        return rows


@strict_arguments
def rollouts(
    constraint: Any,
    *,
    sampler: str | Sampler | None = None,
    proposal: Any = None,
    budget: Budget | None = None,
    batch_size: int | None = None,
    allow_code: bool = False,
) -> Rollouts:
    """Return a function for ``GRPOTrainer(rollout_func=...)``: texts of the policy that satisfy a constraint.

    Texts are drawn from the policy in training with its current weights, at the trainer's temperature and length:
    from g(y) = a(y) b(y) / Z, where a is the policy. With a proposal and the sampler ``"rejection"`` they are drawn
    from g', and ``weighted`` corrects for it. ``logprobs`` are log a of each token over the whole vocabulary at that
    temperature, which the trainer computes too.

    Reward functions get five more columns: ``log_a``, the log-probability of the completion under the policy, in nats;
    ``log_weight``, log a - log a' in nats, up to a constant that the texts of a prompt share, and 0 if they are from g
    or brought to it by a sampler; ``rollout_group``, a number that the completions of a row of the data set share if
    one process has all of them; ``accepted``; and ``attempts``, the number of attempts of the prompt. A text that the
    budget left missing is replaced by an end-of-sequence token: ``accepted`` is False, ``log_a`` and ``log_weight`` are
    None, rewards of this module are None, so that the trainer leaves it out of the mean, and the loss masks the token.

    Parameters
    ----------
    constraint
        As for ``reward``, but without fields: trainers pass the prompts alone.
    sampler, proposal, budget, batch_size
        As for ``GuardedGenerator``, except ``"auto"``.
    allow_code
        Whether a constraint file may name Python functions.

    Raises
    ------
    UsageError
        If the constraint has fields, or the sampler is ``"auto"``.
    """
    file = as_constraint_file(constraint, allow_code=allow_code)
    if fields := names_of_fields(file.constraint):
        raise UsageError(f"TRL passes only prompts, so nothing fills the field {min(fields)!r}; use it in reward()")
    if sampler_named(sampler or file.sampler or "rejection").name == "auto":
        raise UsageError("sampler='auto' plans each call anew; name a sampler, such as 'rejection'")
    options = {"sampler": sampler, "proposal": proposal, "budget": budget, "batch_size": batch_size}
    return Rollouts(file, options | {"allow_code": allow_code})


def _groups(values: Sequence[Any]) -> list[list[int]]:
    """Return the numbers of values that are equal and follow each other."""
    return [list(group) for _, group in groupby(range(len(values)), key=values.__getitem__)]


def _needs_weights(guarded: GuardedGenerator) -> bool:
    """Return whether texts are drawn from g', for ``weighted`` to correct."""
    session = guarded.session
    return session.spec.sampler.name == "rejection" and bool(session.proposal or session.adapter)


def _policy(trainer: Any) -> Any:
    """Return the model in training, without what accelerate has put around it."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if getattr(trainer, "is_fsdp_enabled", False) or (plugin is not None and plugin.zero_stage == 3):
        raise UsageError("no process has all weights of the policy; train with DDP, or with DeepSpeed up to ZeRO 2")
    if getattr(trainer, "tools", None):
        raise UsageError("rollouts() draws one message, and the trainer has tools that would follow; leave tools= out")
    model = trainer.accelerator.unwrap_model(trainer.model)
    config = getattr(model, "active_peft_config", None)
    # With mixed precision, accelerate changes the forward pass of the PeftModel, and not of the model that generates.
    return model if config is None or config.is_prompt_learning else model.get_base_model()


def _settings(trainer: Any, *, chat: bool) -> dict[str, Any]:
    """Return the trainer's generation settings, as options of a call."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    settings = {name: getattr(trainer, name) for name in names} | {"max_new_tokens": trainer.max_completion_length}
    settings |= {"eos_token_id": trainer.eos_token_ids or None} | dict(trainer.args.generation_kwargs or {})
    if chat and trainer.chat_template_kwargs:
        settings["tokenizer_encode_kwargs"] = dict(trainer.chat_template_kwargs)
    known = {name: value for name, value in settings.items() if value is not None}
    return {"do_sample": True, "num_beams": 1, "top_k": 0} | known


def _target(prompt: PreparedPrompt) -> GenerationLaw:
    """Return the law of a(y)."""
    return prompt.target or prompt.law


def _require_whole_vocabulary(prompt: PreparedPrompt) -> None:
    """Raise UsageError if settings other than the temperature change the distribution: the loss knows of no others."""
    law = _target(prompt)
    others = [type(each).__name__ for each in (*law.processors, *law.warpers)]
    others = [name for name in others if name != TemperatureLogitsWarper.__name__]
    if others:
        raise UsageError(
            f"the loss of GRPOTrainer is that of texts sampled at its temperature alone, and {', '.join(others)} "
            "changes their distribution; leave that setting out of GRPOConfig and the model's generation_config"
        )


def _row(token_ids: Sequence[int], logprobs: Sequence[float], mask: int) -> dict[str, Any]:
    """Return the part of a completion that the trainer reads; the loss leaves it out if ``mask`` is 0."""
    row = {"completion_ids": list(token_ids), "logprobs": logprobs, "env_mask": [mask] * len(token_ids)}
    return {**row, "accepted": bool(mask)}


def _noting(log_weights: list[dict[tuple[int, ...], float]]) -> Sampler:
    """Return rejection sampling that notes the log-weights of each prompt's texts."""

    def init() -> dict[tuple[int, ...], float]:
        log_weights.append({})
        return log_weights[-1]

    def step(state: dict[tuple[int, ...], float], attempt: Attempt) -> tuple[Any, Draw | None]:
        if not attempt.satisfied:
            return state, None
        state[attempt.draw.token_ids] = checked_weight(attempt)
        return state, attempt.draw

    # The scheduler takes a sampler that weighs to correct for the proposal itself, which is left to ``weighted`` here.
    of_proposal = Distribution(Closeness.OTHER, "attempts came from the proposal (g')")
    return rejection._replace(init=init, step=step, report=lambda state: (of_proposal, {}), weighs=True)
