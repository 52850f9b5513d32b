"""Drawing tokens from logits, for concurrent attempts of any requests, each with its own law and its own errors."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import sub

import torch

from guardwrap.backends.dead_prefixes import Candidates
from guardwrap.backends.generation_law import GenerationLaw, ended_rows
from guardwrap.backends.prefix_cache import learn, next_token, step, token_laws
from guardwrap.backends.tokens import applied, argmax, inverse_cdf, require_drawable, warped
from guardwrap.errors import own_error
from guardwrap.scheduling.backend import DEAD_END, AttemptState, Launch, grouped
from guardwrap.scheduling.randomness import uniforms


def begun(launch: Launch) -> AttemptState:
    """Return a new attempt, before its first token."""
    branch = None if launch.narrowed is None else launch.narrowed.root
    return AttemptState(launch, stream=uniforms(launch.seed, launch.prompt, launch.attempt), branch=branch)


def draw_tokens(logits: torch.Tensor, attempts: Sequence[AttemptState]) -> torch.Tensor:
    """Draw a token for each attempt, append it, and set the status of the attempts that end with it.

    Parameters
    ----------
    logits
        The model's output for the next token, ``[attempts, vocabulary]``, float32.
    attempts
        The attempts, changed in place. An attempt whose processors, mask or watch raise, or whose logits are invalid,
        gets the status ``"failed"``; other requests' attempts are not affected.

    Returns
    -------
    torch.Tensor
        The tokens, ``[attempts]``; arbitrary for attempts that failed.
    """
    chance = [next(attempt.stream) for attempt in attempts]
    groups = grouped(range(len(attempts)), lambda row: _law(attempts[row]).group)
    draw_together = _drawn if len(groups) == 1 else partial(_drawn_apart, groups)
    tokens = draw_together(logits, attempts, chance)
    drawn = [attempt for attempt in attempts if attempt.error is None and attempt.status == "running"]
    _settle([attempt for attempt in drawn if not step(attempt)])
    return tokens


def walk_known(attempt: AttemptState) -> None:
    """Draw an attempt's next tokens as far as their distributions are cached. The attempt may end with one of them."""
    while attempt.status == "running" and next_token(attempt):
        if not step(attempt):
            _settle([attempt])


def candidates_of(logits: torch.Tensor, attempt: AttemptState) -> Candidates:
    """Return the distribution of an attempt's next token, from its logits ``[1, vocabulary]``."""
    scores, candidates = warped(_process(logits, [attempt]), _law(attempt).warpers)
    require_drawable(scores)
    values, order = (scores[0].double().log_softmax(-1)).sort(descending=True, stable=True)
    some = values > -math.inf
    tokens = order if candidates is None else candidates[0, order]
    return tokens[some].cpu().numpy(), values[some].cpu().numpy()


def _masked(
    scores: torch.Tensor, candidates: torch.Tensor | None, attempts: Sequence[AttemptState]
) -> tuple[torch.Tensor, list[float]]:
    """Exclude tokens by the masks of attempts.

    Returns
    -------
    scores : torch.Tensor
        Scores, with -inf for excluded tokens. A row of which every token would be excluded is unchanged.
    logs : list of float
        log Z of each row in nats, where Z is the probability of the tokens not excluded; -inf if there are none.
    """
    shares = scores.double().softmax(-1)
    masked, logs = scores.clone(), [0.0] * len(attempts)  # a copy: if a mask raises, other rows restart from ``scores``
    for row, attempt in enumerate(attempts):
        mask = attempt.launch.mask
        if mask is None:
            continue
        some = shares[row].nonzero().squeeze(1)
        tokens = some if candidates is None else candidates[row, some]
        gone = mask.left_out(attempt.token_ids, tokens.cpu().numpy(), shares[row, some].cpu().numpy())
        dead = some[torch.from_numpy(gone).to(some.device)]
        if len(dead) == len(some):
            logs[row] = -math.inf
        elif len(dead):
            masked[row, dead] = -math.inf
            logs[row] = math.log(float(shares[row].index_fill(0, dead, 0.0).sum()))
    return masked, logs


def _beyond(scores: torch.Tensor, attempt: AttemptState) -> torch.Tensor | None:
    """Return the scores of the tokens that a mask allows, truncated after it; None if it must not, or allows none.

    All of them are beyond the law's truncation, so log a is -inf.

    Parameters
    ----------
    scores
        The scores of one row after its processors, ``[1, vocabulary]``.
    attempt
        Its attempt.
    """
    mask, law = attempt.launch.mask, _law(attempt)
    if mask is None or not mask.beyond or len(law.untruncated) == len(law.warpers):
        return None
    ids = torch.empty(1, 0, dtype=torch.long)
    shares = applied(law.untruncated, ids, scores)[0].double().softmax(-1)
    some = shares.nonzero().squeeze(1)
    gone = mask.left_out(attempt.token_ids, some.cpu().numpy(), shares[some].cpu().numpy(), beyond=True)
    if gone.all():
        return None
    masked = scores.clone()
    masked[0, some[torch.from_numpy(gone).to(some.device)]] = -math.inf
    return applied(law.warpers, ids, masked)


def _twisted(
    scores: torch.Tensor, candidates: torch.Tensor | None, attempts: Sequence[AttemptState], rows: Sequence[int]
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Weigh the next tokens of attempts by their twists.

    Returns
    -------
    scores : torch.Tensor
        Scores that tokens are drawn from. Rows without a twist are unchanged.
    itself : dict of int to torch.Tensor
        For each row with a twist, log a of its tokens in nats, ``[columns]``, float64.
    """
    itself = dict(zip(rows, scores[rows].double().log_softmax(-1), strict=True))
    twisted = scores.clone()  # a copy: if a twist raises, other rows restart from ``scores``
    for row, values in itself.items():
        tokens = None if candidates is None else candidates[row].cpu().numpy()
        attempt = attempts[row]
        factors = attempt.launch.twist.log_factors(  # type: ignore[union-attr]
            attempt.token_ids, tokens, values.cpu().numpy(), attempt.log_left
        )
        sums = values + torch.from_numpy(factors).to(values.device)
        twisted[row] = (sums - sums.max()).to(scores.dtype)  # centered, as factors may be far below float32's digits
    return twisted, itself


def _end(attempt: AttemptState) -> None:
    """End an attempt whose next tokens are all excluded, and cache that attempts end here."""
    attempt.status, attempt.blame = "dead_end", DEAD_END
    attempt.launch.mask.close(attempt.token_ids)  # type: ignore[union-attr]  # there is a mask, as it excluded them
    if attempt.place is not None:
        attempt.place.end = attempt.status, attempt.blame
        attempt.memo = attempt.place.memo


def _keep_laws(
    scores: torch.Tensor,
    candidates: torch.Tensor | None,
    attempts: Sequence[AttemptState],
    left: Sequence[float],
    itself: Mapping[int, torch.Tensor],
) -> None:
    """Cache the distributions of next tokens at the attempts' cached prefixes."""
    places = {attempt.place: row for row, attempt in enumerate(attempts) if attempt.place is not None}
    rows = [row for place, row in places.items() if place.law is None]
    if rows:
        some = None if candidates is None else candidates[rows]
        for row, law in zip(rows, token_laws(scores[rows], some), strict=True):
            law.log_left = left[row]
            if row in itself:
                values = itself[row][_columns(law.tokens, None if candidates is None else candidates[row])]
                law.log_lefts = array("d", map(sub, values.tolist(), law.log_probabilities))
            attempts[row].place.law = law


def _columns(tokens: Sequence[int], candidates: torch.Tensor | None) -> list[int]:
    """Return the columns of some tokens."""
    if candidates is None:
        return list(tokens)
    place = {token: column for column, token in enumerate(candidates.tolist())}
    return [place[token] for token in tokens]


def _drawn(logits: torch.Tensor, attempts: Sequence[AttemptState], chance: Sequence[float]) -> torch.Tensor:
    """Draw for attempts of one mode and equal warpers; if that raises, for each request separately."""
    try:
        processed = _process(logits, attempts)
        scores, candidates = warped(processed, _law(attempts[0]).warpers)
        left = [0.0] * len(attempts)
        itself: dict[int, torch.Tensor] = {}
        twisted = [row for row, attempt in enumerate(attempts) if attempt.launch.twist is not None]
        if twisted:
            require_drawable(scores)
            scores, itself = _twisted(scores, candidates, attempts, twisted)
        if all(attempt.launch.mask is None for attempt in attempts):
            return _chosen(scores, candidates, attempts, chance, left, itself)
        require_drawable(scores)
        scores, left = _masked(scores, candidates, attempts)
        beyond: dict[int, torch.Tensor] = {}
        for row, (attempt, log_left) in enumerate(zip(attempts, left, strict=True)):
            allowed = _beyond(processed[row : row + 1], attempt) if log_left == -math.inf else None
            if log_left == -math.inf and allowed is None:
                _end(attempt)
                continue
            attempt.log_left += log_left
            if allowed is not None:
                beyond[row] = allowed
        rows = [row for row, attempt in enumerate(attempts) if attempt.status == "running" and row not in beyond]
        tokens = torch.zeros(len(attempts), dtype=torch.long, device=logits.device)
        if rows:
            some = None if candidates is None else candidates[rows]
            kept, its = [attempts[row] for row in rows], [chance[row] for row in rows]
            itself = {place: itself[row] for place, row in enumerate(rows) if row in itself}
            tokens[rows] = _chosen(scores[rows], some, kept, its, [left[row] for row in rows], itself)
        for row, allowed in beyond.items():
            tokens[row] = _chosen(allowed, None, [attempts[row]], [chance[row]], [-math.inf], {})
        return tokens
    except torch.OutOfMemoryError:
        raise
    except BaseException as error:
        own = own_error(error)
        parts = grouped(range(len(attempts)), lambda row: id(attempts[row].launch.request))
        if len(parts) == 1:
            for attempt in attempts:
                attempt.fail(own)
            return torch.zeros(len(attempts), dtype=torch.long, device=logits.device)
    return _drawn_apart(parts, logits, attempts, chance)


def _chosen(
    scores: torch.Tensor,
    candidates: torch.Tensor | None,
    attempts: Sequence[AttemptState],
    chance: Sequence[float],
    left: Sequence[float],
    itself: Mapping[int, torch.Tensor],
) -> torch.Tensor:
    """Choose a token for each attempt, and cache the distributions that they were drawn from."""
    before = {row: attempts[row].log_probability for row in itself}
    tokens = choose_tokens(scores, attempts, chance, candidates)  # raises for NaN, which must not be cached
    for row, values in itself.items():
        attempt = attempts[row]
        (column,) = _columns(attempt.token_ids[-1:], None if candidates is None else candidates[row])
        attempt.log_left += float(values[column]) - (attempt.log_probability - before[row])
    _keep_laws(scores, candidates, attempts, left, itself)
    return tokens


def _drawn_apart(
    groups: Sequence[Sequence[int]], logits: torch.Tensor, attempts: Sequence[AttemptState], chance: Sequence[float]
) -> torch.Tensor:
    """Draw for groups of rows one after the other."""
    tokens = torch.zeros(len(attempts), dtype=torch.long, device=logits.device)
    for rows in groups:
        tokens[rows] = _drawn(logits[rows], [attempts[row] for row in rows], [chance[row] for row in rows])
    return tokens


def choose_tokens(
    scores: torch.Tensor,
    attempts: Sequence[AttemptState],
    chance: Sequence[float],
    candidates: torch.Tensor | None = None,
) -> torch.Tensor:
    """Choose a token for each attempt of one mode, append it, and add its log-probability to the attempt's.

    Parameters
    ----------
    scores
        Scores after all processors and warpers, ``[attempts, columns]``.
    attempts
        The attempts, changed in place.
    chance
        A uniform random number in [0, 1) for each attempt.
    candidates
        The token of each column, ``[attempts, columns]``; None if column i is token i.

    Returns
    -------
    torch.Tensor
        The tokens, ``[attempts]``.
    """
    uniform = torch.tensor(chance, dtype=torch.float64, device=scores.device)
    choose = inverse_cdf if _law(attempts[0]).mode == "sample" else argmax
    tokens, log_probabilities = choose(scores, uniform)
    if candidates is not None:
        tokens = candidates.gather(1, tokens[:, None]).squeeze(1)
    for attempt, token, value in zip(attempts, tokens.tolist(), log_probabilities.tolist(), strict=True):
        attempt.token_ids.append(token)
        attempt.log_probability += value
    return tokens


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
    groups = list(_texts(attempts))
    scores = logits
    for law, rows, ids in groups:
        if len(groups) == 1:
            scores = law.processors(ids.to(logits.device), logits)
        elif law.processors:
            scores = logits.clone() if scores is logits else scores
            scores[rows] = law.processors(ids.to(logits.device), logits[rows])
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
