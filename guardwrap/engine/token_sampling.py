"""Drawing tokens from logits, for concurrent attempts of any requests, each with its own law and its own errors."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from guardwrap.engine.dead_prefixes import Candidates
from guardwrap.engine.generation_law import (
    GenerationLaw,
    applied,
    argmax,
    ended_rows,
    inverse_cdf,
    require_drawn,
    top_candidates,
    warped,
    with_processors,
)
from guardwrap.engine.prefix_cache import learn, next_token, step, token_laws
from guardwrap.engine.scheduling.backend import DEAD_END, AttemptState, Launch, grouped
from guardwrap.engine.scheduling.randomness import uniforms
from guardwrap.errors import own_error

Values: TypeAlias = npt.NDArray[np.float64]


class _Proposal(NamedTuple):
    """What the next tokens of some attempts are drawn from: a', one row for each attempt.

    Weights are of what is really drawn, so it also says what log a - log a' of each token is: log Z with a mask, and
    what follows from log a with a twist. An attempt has at most one of these.
    """

    scores: torch.Tensor  # of a', ``[rows, columns]``; -inf for tokens that cannot be drawn
    candidates: torch.Tensor | None  # the token of each column, ``[rows, columns]``; None if column i is token i
    # in which rows a token may be missing among the candidates, ``[rows]``; None if none can be
    tied: torch.Tensor | None
    log_z: Sequence[float]  # for each row, log Z in nats: 0 without a mask, -inf if a mask excludes every token
    log_model: Mapping[int, torch.Tensor]  # for each row with a twist, log a in nats, ``[columns]``, float64

    def of(self, rows: Sequence[int]) -> _Proposal:
        """Return the proposal of some of the rows, in ascending order."""
        if len(rows) == len(self.scores):
            return self
        candidates = None if self.candidates is None else self.candidates[rows]
        tied = None if self.tied is None else self.tied[rows]
        log_model = {place: self.log_model[row] for place, row in enumerate(rows) if row in self.log_model}
        return _Proposal(self.scores[rows], candidates, tied, [self.log_z[row] for row in rows], log_model)


def new_attempt(launch: Launch) -> AttemptState:
    """Return an attempt before its first token."""
    branch = None if launch.narrowed is None else launch.narrowed.root
    return AttemptState(launch, stream=uniforms(launch.seed, launch.prompt, launch.attempt), branch=branch)


def draw_tokens(logits: torch.Tensor, attempts: Sequence[AttemptState]) -> torch.Tensor:
    """Draw a token for each attempt, append it, and set the status of the attempts that end with it.

    Takes the model's logits of the next token, ``[attempts, vocabulary]``, float32; returns the tokens, arbitrary for
    attempts that failed. An attempt whose processors, mask or watch raise, or whose logits are invalid, gets the status
    ``"failed"``; other requests' attempts are not affected.
    """
    chance = [next(attempt.stream) for attempt in attempts]
    groups = grouped(range(len(attempts)), lambda row: _law(attempts[row]).group)
    draw_together = _draw_isolated if len(groups) == 1 else partial(_draw_apart, groups)
    tokens = draw_together(logits, attempts, chance)
    extended = [attempt for attempt in attempts if attempt.error is None and attempt.status == "running"]
    _settle([attempt for attempt in extended if not step(attempt)])
    if any(attempt.launch.twist is not None for attempt in extended):  # it may have written another token
        newest = [attempt.token_ids[-1] if attempt.token_ids else 0 for attempt in attempts]
        tokens = torch.tensor(newest, dtype=tokens.dtype, device=tokens.device)
    return tokens


def walk_known(attempt: AttemptState) -> None:
    """Draw an attempt's next tokens as far as their distributions are cached. The attempt may end with one of them."""
    while attempt.status == "running" and next_token(attempt):
        if not step(attempt):
            _settle([attempt])


def candidates_of(logits: torch.Tensor, attempt: AttemptState) -> Candidates:
    """Return the distribution of an attempt's next token, from its logits ``[1, vocabulary]``."""
    scores, candidates = warped(_process(logits, [attempt]), _law(attempt).warpers)
    values, order = (scores[0].double().log_softmax(-1)).sort(descending=True, stable=True)
    require_drawn(values[:1].tolist())
    possible = values > -math.inf
    tokens = order if candidates is None else candidates[0, order]
    return tokens[possible].cpu().numpy(), values[possible].cpu().numpy()


def _draw_isolated(logits: torch.Tensor, attempts: Sequence[AttemptState], chance: Sequence[float]) -> torch.Tensor:
    """Draw for attempts of one mode and equal warpers; if that raises, for each request separately."""
    try:
        return _draw(logits, attempts, chance)
    except torch.OutOfMemoryError:
        raise
    except BaseException as error:
        own = own_error(error)
        parts = grouped(range(len(attempts)), lambda row: id(attempts[row].launch.request))
        if len(parts) == 1:
            for attempt in attempts:
                attempt.fail(own)
            return torch.zeros(len(attempts), dtype=torch.long, device=logits.device)
    return _draw_apart(parts, logits, attempts, chance)


def _draw_apart(
    groups: Sequence[Sequence[int]], logits: torch.Tensor, attempts: Sequence[AttemptState], chance: Sequence[float]
) -> torch.Tensor:
    """Draw for groups of rows one after the other."""
    tokens = torch.zeros(len(attempts), dtype=torch.long, device=logits.device)
    for rows in groups:
        tokens[rows] = _draw_isolated(logits[rows], [attempts[row] for row in rows], [chance[row] for row in rows])
    return tokens


def _draw(logits: torch.Tensor, attempts: Sequence[AttemptState], chance: Sequence[float]) -> torch.Tensor:
    """Draw for attempts of one mode and equal warpers. Attempts change only after everything that may raise for one."""
    processed, warpers = _process(logits, attempts), _law(attempts[0]).warpers
    log_z = [0.0] * len(attempts)
    try:
        return _draw_from(_Proposal(*top_candidates(processed, warpers), log_z, {}), processed, attempts, chance)
    except _Tied:
        return _draw_from(_Proposal(applied(warpers, processed), None, None, log_z, {}), processed, attempts, chance)


class _Tied(Exception):
    """More tokens may be tied with the k-th than there are candidates. Raised before an attempt changes."""


def _draw_from(
    proposal: _Proposal, processed: torch.Tensor, attempts: Sequence[AttemptState], chance: Sequence[float]
) -> torch.Tensor:
    if any(attempt.launch.twist is not None for attempt in attempts):
        proposal = _twisted(proposal, attempts)
    if all(attempt.launch.mask is None for attempt in attempts):
        return _choose(proposal, attempts, chance)
    proposal = _masked(proposal, attempts)
    empty = [row for row, log_z in enumerate(proposal.log_z) if log_z == -math.inf]
    beyond = {row: _beyond_truncation(processed[row : row + 1], attempts[row]) for row in empty}
    tokens = torch.zeros(len(attempts), dtype=torch.long, device=processed.device)
    for row, allowed in beyond.items():
        if allowed is None:
            _end(attempts[row])
        else:
            tokens[row] = _choose(allowed, [attempts[row]], [chance[row]])
    if rows := [row for row in range(len(attempts)) if row not in beyond]:
        tokens[rows] = _choose(proposal.of(rows), [attempts[row] for row in rows], [chance[row] for row in rows])
    return tokens


def _masked(proposal: _Proposal, attempts: Sequence[AttemptState]) -> _Proposal:
    """Exclude the tokens that masks leave out: a'(x) = a(x) / Z for the others, with Z = Σ a(x) over these.

    So log a - log a' = log Z for each token. A row of which every token would be excluded is unchanged, with Z = 0.
    """
    shares, columns = _fetched(proposal.scores.double().softmax(-1), proposal)
    log_z = list(proposal.log_z)  # a copy: if a mask raises, other rows restart
    excluded = np.zeros(shares.shape, dtype=bool)
    for row, attempt in enumerate(attempts):
        mask = attempt.launch.mask
        if mask is None:
            continue
        (possible,) = shares[row].nonzero()
        tokens = possible if columns is None else columns[row, possible]
        dead = possible[mask.left_out(attempt.token_ids, tokens, shares[row, possible])]
        if len(dead) == len(possible):
            log_z[row] = -math.inf
        elif len(dead):
            excluded[row, dead] = True
            log_z[row] = math.log(shares[row, ~excluded[row]].sum())
    gone = torch.from_numpy(excluded).to(proposal.scores.device, non_blocking=True)
    return proposal._replace(scores=proposal.scores.masked_fill(gone, -math.inf), log_z=log_z)


def _fetched(values: torch.Tensor, proposal: _Proposal) -> tuple[Values, npt.NDArray[np.int64] | None]:
    """Copy figures of a proposal's columns, float64, and the tokens of the columns to the CPU, in one copy."""
    size = values.shape[1]
    parts = [values]
    if proposal.candidates is not None:
        parts.append(proposal.candidates.double())
    if proposal.tied is not None:
        parts.append(proposal.tied.double()[:, None])
    copied = (values if len(parts) == 1 else torch.cat(parts, dim=1)).cpu().numpy()
    require_drawn(copied[:, 0].tolist())
    if proposal.tied is not None and copied[:, -1].any():
        raise _Tied
    tokens = None if proposal.candidates is None else copied[:, size : 2 * size].astype(np.int64)
    return copied[:, :size], tokens


def _beyond_truncation(scores: torch.Tensor, attempt: AttemptState) -> _Proposal | None:
    """Return the proposal of the tokens that a mask allows, truncated after it; None if it must not, or allows none.

    All of them are beyond the law's truncation, so log a is -inf. ``scores`` are those of one row after its
    processors, ``[1, vocabulary]``.
    """
    mask, law = attempt.launch.mask, _law(attempt)
    if mask is None or not mask.beyond or len(law.untruncated) == len(law.warpers):
        return None
    shares = applied(law.untruncated, scores)[0].double().softmax(-1)
    possible = shares.nonzero().squeeze(1)
    tokens, its = possible.cpu().numpy(), shares[possible].cpu().numpy()
    excluded = mask.left_out(attempt.token_ids, tokens, its, beyond=True)
    if excluded.all():
        return None
    masked = scores.clone()
    masked[0, possible[torch.from_numpy(excluded).to(possible.device)]] = -math.inf
    return _Proposal(applied(law.warpers, masked), None, None, [-math.inf], {})


def _twisted(proposal: _Proposal, attempts: Sequence[AttemptState]) -> _Proposal:
    """Weigh tokens x by twists: a'(x) = a(x) ψ(s') / (ψ(s) N), with N = Σ a(x) ψ(s') / ψ(s) over all tokens.

    s is the state before a token and s' the one after it, ψ a state's value. A twist gives log ψ(s') - log ψ(s), up to
    a constant that N takes out, and bounded. So log a - log a' = log N + log ψ(s) - log ψ(s'): it differs from token to
    token, and is computed from log a.
    """
    rows = [row for row, attempt in enumerate(attempts) if attempt.launch.twist is not None]
    twisted = proposal.of(rows)
    log_model = twisted.scores.double().log_softmax(-1)
    log_a, columns = _fetched(log_model, twisted)
    sums = np.empty_like(log_a)
    for place, row in enumerate(rows):
        attempt, tokens = attempts[row], None if columns is None else columns[place]
        sums[place] = log_a[place] + attempt.launch.twist.log_factors(  # type: ignore[union-attr]  # there is one
            attempt.token_ids, tokens, log_a[place], attempt.log_weight
        )
    sums -= sums.max(axis=1, keepdims=True)  # centered, as factors may be far below float32's digits
    scores = proposal.scores.clone()  # a copy: if a twist raises, other rows restart
    scores[rows] = torch.from_numpy(sums).to(scores.device, scores.dtype)
    return proposal._replace(scores=scores, log_model=dict(zip(rows, log_model, strict=True)))


def _end(attempt: AttemptState) -> None:
    """End an attempt whose next tokens are all excluded, and cache that attempts end here."""
    attempt.status, attempt.blame = "dead_end", DEAD_END
    attempt.launch.mask.close(attempt.token_ids)  # type: ignore[union-attr]  # there is a mask, as it excluded them
    if attempt.place is not None:
        attempt.place.end = attempt.status, attempt.blame
        attempt.memo = attempt.place.memo


def _choose(proposal: _Proposal, attempts: Sequence[AttemptState], chance: Sequence[float]) -> torch.Tensor:
    """Choose a token for each attempt, with its weight, and cache the distributions that they were drawn from."""
    # raises for NaN, which must not be cached
    tokens, log_weights = _chosen(proposal, attempts, chance)
    for attempt, log_z, log_weight in zip(attempts, proposal.log_z, log_weights, strict=True):
        attempt.log_weight += log_z + log_weight
    _keep_laws(proposal, attempts)
    return tokens


def _keep_laws(proposal: _Proposal, attempts: Sequence[AttemptState]) -> None:
    """Cache the distributions of next tokens at the attempts' cached prefixes."""
    places = {attempt.place: row for row, attempt in enumerate(attempts) if attempt.place is not None}
    rows = [row for place, row in places.items() if place.law is None]
    if rows:
        new = proposal.of(rows)
        laws = token_laws(new.scores, new.candidates)
        for row, law, log_z in zip(rows, laws, new.log_z, strict=True):
            law.log_weight = log_z
            attempts[row].place.law = law
        if new.log_model:
            log_model, columns = _fetched(torch.stack([*new.log_model.values()]), new.of([*new.log_model]))
            for row, (number, log_a) in enumerate(zip(new.log_model, log_model, strict=True)):
                law = laws[number]
                kept = np.asarray(law.tokens) if columns is None else np.searchsorted(columns[row], law.tokens)
                with np.errstate(invalid="ignore"):  # where truncation left a token out, which is never drawn
                    law.log_weights = array("d", log_a[kept] - law.log_probabilities)


def choose_tokens(scores: torch.Tensor, attempts: Sequence[AttemptState], chance: Sequence[float]) -> torch.Tensor:
    """Choose a token for each attempt of one mode, append it, and add its log-probability to the attempt's.

    Takes scores after all processors and warpers, ``[attempts, vocabulary]``, and a uniform random number in [0, 1) for
    each attempt. Returns the tokens, ``[attempts]``.
    """
    return _chosen(_Proposal(scores, None, None, (), {}), attempts, chance)[0]


def _chosen(
    proposal: _Proposal, attempts: Sequence[AttemptState], chance: Sequence[float]
) -> tuple[torch.Tensor, list[float]]:
    """Choose tokens; return them, and log a - log a' of each that has a twist, in nats, or else 0.

    All that is to be known of them comes to the CPU in one copy, for which a GPU is waited for once.
    """
    scores = proposal.scores
    uniform = torch.tensor(chance, dtype=torch.float64, device=scores.device)
    choose = inverse_cdf if _law(attempts[0]).mode == "sample" else argmax
    columns, log_probabilities = choose(scores, uniform)
    tokens = columns if proposal.candidates is None else proposal.candidates.gather(1, columns[:, None]).squeeze(1)
    log_weights = torch.zeros_like(log_probabilities)
    if rows := list(proposal.log_model):
        log_a = torch.stack([*proposal.log_model.values()]).gather(1, columns[rows, None]).squeeze(1)
        log_weights[rows] = log_a - log_probabilities[rows]
    tied = torch.zeros_like(log_weights) if proposal.tied is None else proposal.tied.double()
    copied: list[list[float]] = torch.stack([tokens.double(), log_probabilities, log_weights, tied]).tolist()
    require_drawn(copied[1])
    if any(copied[3]):
        raise _Tied
    for attempt, token, log_probability in zip(attempts, copied[0], copied[1], strict=True):
        attempt.token_ids.append(int(token))
        attempt.log_probability += log_probability
    return tokens, copied[2]


def note(attempt: AttemptState, finished: bool, cut: bool, now: float) -> None:
    """Set the status of an attempt if it ends with its newest token."""
    launch = attempt.launch
    if finished:
        attempt.status = "finished"
    elif cut:
        attempt.status = "cut"
    else:
        try:
            attempt.blame = launch.watch(attempt.token_ids) if launch.watch is not None else None
        except BaseException as error:  # raised by the constraint, so only this request fails
            attempt.fail(own_error(error))
            return
        if attempt.blame:
            attempt.status = "aborted"
        elif launch.deadline is not None and now >= launch.deadline:
            attempt.status = "abandoned"


def _law(attempt: AttemptState) -> GenerationLaw:
    law: GenerationLaw = attempt.launch.law
    return law


def _texts(attempts: Sequence[AttemptState]) -> Iterator[tuple[GenerationLaw, list[int], torch.Tensor]]:
    """Yield law, rows, and token ids including the prompt, for each group of attempts with one prompt and length.

    Equal lengths make padding unnecessary.
    """
    for rows in grouped(range(len(attempts)), lambda row: (id(_law(attempts[row])), len(attempts[row].token_ids))):
        law = _law(attempts[rows[0]])
        new = torch.tensor([attempts[row].token_ids for row in rows], dtype=torch.long)
        prompt = law.prompt_ids.expand(len(rows), -1)
        yield law, rows, torch.cat([prompt, new.to(prompt.device)], dim=1)


def _process(logits: torch.Tensor, attempts: Sequence[AttemptState]) -> torch.Tensor:
    """Apply the logits processors to the rows of each prompt separately."""
    if not any(_law(attempt).processors for attempt in attempts):
        return logits
    scores = logits.clone()
    for law, rows, ids in _texts(attempts):
        if law.processors:
            adjoin = rows[-1] - rows[0] == len(rows) - 1
            its = scores[rows[0] : rows[-1] + 1] if adjoin else scores[rows]
            processed = with_processors(law.processors, ids.to(logits.device), its)
            if processed is not its or not adjoin:
                scores[rows] = processed
    return scores


def _settle(attempts: Sequence[AttemptState]) -> None:
    """Determine which attempts end with their newest token, set their status, and cache the results."""
    now = time.monotonic()
    stopped: set[int] = set()
    if any(_law(attempt).criteria for attempt in attempts):
        for law, rows, ids in _texts(attempts):
            if law.criteria:
                stopped |= _stopped(law, [attempts[row] for row in rows], ids)
    for attempt in attempts:
        if attempt.error is None:
            law = _law(attempt)
            ends = id(attempt) in stopped or attempt.token_ids[-1] in law.end_ids
            note(attempt, ends, _at_limit(attempt, now), now)
        learn(attempt)
    if turned := [attempt for attempt in attempts if _turned(attempt)]:
        _settle(turned)


def _turned(attempt: AttemptState) -> bool:
    """Return whether an attempt goes on from a shorter text, as its twist has it; see ``TokenTwist.turned``."""
    twist = attempt.launch.twist
    try:
        return twist is not None and attempt.error is None and twist.turned(attempt)
    except BaseException as error:  # raised by the constraint
        attempt.fail(own_error(error))
        return False


def _stopped(law: GenerationLaw, attempts: Sequence[AttemptState], ids: torch.Tensor) -> set[int]:
    """Return the ``id`` of each attempt of one prompt that a stopping criterion ends."""
    try:
        done = torch.stack([ended_rows(each, ids, None) for each in law.criteria]).any(0).tolist()
    except BaseException as error:  # raised by the user's own criterion
        own = own_error(error)
        for attempt in attempts:
            attempt.fail(own)
        return set()
    return {id(attempt) for attempt, stop in zip(attempts, done, strict=True) if stop}


def _at_limit(attempt: AttemptState, now: float) -> bool:
    law = _law(attempt)
    late = law.max_time is not None and now - attempt.began >= law.max_time
    return late or len(law.prompt_ids) + len(attempt.token_ids) >= law.max_length
