"""The training loop: rounds of drawing, learning and validation, until the budget ends."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from guardwrap.adapters.card import CardPrompts, fingerprint
from guardwrap.constraints.files.file_fields import NAMED
from guardwrap.constraints.kinds.share import shares_of
from guardwrap.errors import UsageError
from guardwrap.generator import GuardedGenerator
from guardwrap.metrics.intervals import Floats, rate_over
from guardwrap.metrics.weights import kong
from guardwrap.outcomes import Estimate
from guardwrap.proposals import Prompt
from guardwrap.training import shards
from guardwrap.training.learning_curve import Follow, Meter, Row, Units, summarise, warnings_of, write_curve
from guardwrap.training.mixture import Mixture, reserved
from guardwrap.training.policy import Policy, read_start, require_number, update
from guardwrap.training.rounds import BASE, POLICY, Drawn, Gold, Round, continued, draw_round, rounds
from guardwrap.training.task import Task
from guardwrap.training.training_settings import TrainingSettings
from guardwrap.training.training_state import (
    Buffer,
    Fit,
    State,
    newest_checkpoint,
    placed_under,
    read_state,
    state_to_json,
    systematic,
    under,
    write_checkpoint,
)
from guardwrap.twists.progress_of import automaton_of

logger = logging.getLogger("guardwrap")

T = TypeVar("T")

WARM_UP = 20
"""Updates of learning-rate warm-up at the beginning of each round of replay and sft."""

COOLED = 0.2
"""Factor on the learning rate in the second phase of a replay round, after the held-out KL has stopped falling."""

CLIP = 1.0
"""Largest gradient norm of replay and sft. DPG does not clip; weights are never clipped."""

STRENGTHS = (0.95, 0.9, 0.85, 0.8, 0.7)
"""Interpolation factors between the model (0) and the policy (1), tried at the end of a replay round. At 0.9 the policy
of "dragon" after 60 000 samples had KL(g‖a') 0.76 instead of 0.78 and KL(g‖g') 0.57 instead of 0.68, with an acceptance
rate of 0.83 instead of 0.90."""

OFTEN = 100
"""Most times that a replay round learns from each effective draw of g. A few held-out draws do not reveal overfitting:
100 updates of 64 with 13 texts of a classifier's constraint, worth 6 draws of g, raised KL(g‖a') from 5.56 to 6.21,
while the KL of the 6 held-out texts fell. The best policies for keywords learned from theirs up to 75 times."""

_MEASURED = 400  # held-out samples, chosen by weight, so that heavy ones repeat


class Trainer:
    """A training, which resumes from the newest checkpoint in its folder."""

    def __init__(
        self,
        guarded: GuardedGenerator,
        settings: TrainingSettings,
        folder: Path,
        tick: Callable[[Row], None] = lambda row: None,
        follow: Follow = lambda stage: None,
    ) -> None:
        self.settings: TrainingSettings = (settings := settings.of_constraint(guarded.constraint))
        self.folder: Path = folder
        self.follow: Follow = follow
        self._tick = tick
        if settings.one_side is not None:  # of prompts with fields, which are known only with the constraint
            raise UsageError(settings.one_side)
        self.task: Task = Task(guarded, settings.given_prompts, settings.generation, settings.fields)
        if settings.fields and "twisted" in settings.hints:
            raise UsageError("hints: twisted is for one rule, and here each prompt has its own; give masked instead")
        if "twisted" in settings.hints and automaton_of(guarded.constraint) is None:
            raise UsageError(f"hints: no automaton follows {guarded.constraint.title}; give masked instead of twisted")
        if shares_of(guarded.constraint):
            raise UsageError("an adapter is trained for what each text must satisfy; leave shares out")
        start = None if settings.start is None else read_start(guarded.model, settings.start)
        self.start_prompts: CardPrompts | None = None if start is None or start.card is None else start.card.prompts
        if self.start_prompts is not None:
            _require_held_out(settings, self.start_prompts)
        self.policy: Policy = Policy(guarded.model, None if settings.full else settings.rank, settings.seed, start)
        self._optimizer = self.policy.adam(settings.rate)
        self.held_out: list[bool] = settings.held_out_prompts
        # The unit of each prompt of both sides, for intervals for units like these; None for these prompts.
        self.units: tuple[Units, Units] = self.sides(settings.units) if any(self.held_out) else (None, None)
        buffer = Buffer(self._prompts, self.held_out if any(self.held_out) else [])
        self.state: State = State(buffer, partition=[0.0] * self._prompts)
        self.gold: Gold | None = None
        self._about = self._what_this_is()
        self._began = time.monotonic()
        self._resume()
        self._mixture = Mixture(self.task, self.policy, self.state, settings)

    def find_gold(self) -> None:
        """Draw ``gold_attempts`` attempts of the model itself, on which KL(g‖a') is measured."""
        if count := self.settings.gold_attempts:
            each = math.ceil(count / self._prompts)
            place, digest = self.folder / "gold", self.digest(BASE)
            self.gold = Gold.draw(self.task, each, place, self.settings.seed, digest, self.follow)

    @property
    def _prompts(self) -> int:
        return len(self.settings.prompts)

    def sides(self, of_prompts: Sequence[T]) -> tuple[list[T], list[T]]:
        """Divide values, one for each prompt, into those of prompts that are trained on and those of held-out ones."""
        pairs = list(zip(of_prompts, self.held_out, strict=True))
        return [each for each, unseen in pairs if not unseen], [each for each, unseen in pairs if unseen]

    def run(self) -> None:
        """Run the remaining rounds, until the budget ends."""
        self._began = time.monotonic()  # draws for measurements do not count against the budget
        self._meter = Meter(self.follow, "samples", self.settings.samples, self.state.samples)
        for number in range(self.state.done, len(self.state.plan)):
            if self.state.fit is None and (self._over() or not self._begin(number)):
                return
            self._finish(number)

    def settle(self) -> None:
        """Restore the best policy so far of an interrupted replay round."""
        if self.state.fit is not None and self.state.fit.best_state:
            self.policy.load_state_dict(self.state.fit.best_state)

    def _begin(self, number: int) -> bool:
        """Draw a round's attempts; return False if the budget ended first."""
        state, planned = self.state, self.state.plan[number]
        branching = [law == BASE and planned.learn == "replay" for law, _ in planned.draws]
        counts = [n - (reserved(n) if each else 0) for (_, n), each in zip(planned.draws, branching, strict=True)]
        drawn: list[Drawn] = []
        for place, count in enumerate(counts):
            drawn.append(self._draw(number, place, count, branching[place], sum(each.tokens for each in drawn)))
        if not drawn[0].attempts:
            return False
        attempts = sum(each.attempts for each in drawn)
        state.samples += attempts * self._prompts
        state.tokens += sum(each.tokens for each in drawn)
        row, ratios = self._absorb(number, planned, drawn)
        if attempts < sum(counts):  # the budget has ended; if it is raised, what is left is divided anew
            state.plan = continued(state.plan[: number + 1], self.settings, state.samples)
        self._meter.reach(state.samples)  # including branches
        if planned.learn != "dpg" or not state.dpg_steps:
            self._optimizer = self.policy.adam(self.settings.rate)
        state.fit = Fit(row, best_state=self.policy.state_dict() if planned.learn == "replay" else {})
        if planned.learn == "dpg":
            self._dpg(drawn[0], ratios)
        return True

    def _finish(self, number: int) -> None:
        """Learn from a round's draws, and write a checkpoint."""
        state, planned, fit = self.state, self.state.plan[number], self.state.fit
        assert fit is not None
        replays, ended = planned.learn == "replay", True
        if planned.learn != "dpg" and state.buffer.samples:
            ended = self._learn(number, replays)
        row = fit.row
        row.updates = {"replay": fit.best_step, "sft": fit.step, "dpg": int(row.accepted > 0)}[planned.learn]
        row.held_out = fit.best if replays and math.isfinite(fit.best) else None
        row.kl_gold = self.kl_on_gold()
        row.warnings = warnings_of(row, None if self.gold is None else self.gold.drawn.acceptance)
        for warning in row.warnings if shards.is_main() else ():
            logger.warning("round %d: %s", number, warning)
        state.curve.append(row)
        state.done, state.fit = number + 1, None
        if ended and self._keep():  # the checkpoint contains the draws now
            for drawn in (self.folder / "draws").glob("[0-9]*"):
                if drawn.name <= f"{number:04d}":
                    shutil.rmtree(drawn, ignore_errors=True)
        if shards.is_main():
            write_curve(state.curve, self.folder / "curve.jsonl")
        self._tick(row)

    # Drawing

    def _draw(self, number: int, place: int, count: int, branching: bool, spent: int) -> Drawn:
        """Draw the attempts of one of a round's laws; ``spent`` is the number of tokens of the others."""
        law = self.state.plan[number].draws[place][0]
        if law == POLICY:
            source, name = self.policy.source(), self.policy.digest()
        else:
            source, name = None if law == BASE else NAMED[law]() if law in NAMED else Prompt(law), law
        return draw_round(
            self.task,
            source,
            count,
            seed=(self.settings.seed, f"round {number} {law}"),
            digest=self.digest(name),
            folder=self.folder / "draws" / f"{number:04d}" / str(place),
            over=lambda attempts, tokens: self._over(spent + tokens),
            meter=self._meter,
            keep_rejected=branching,
        )

    def digest(self, law: str) -> str:
        """Return a digest of a law with the model, constraint, prompts, fields, settings and seed."""
        names = ("model", "dtype", "constraint", "prompts", "fields", "chat", "generation", "seed")
        return hashlib.sha256(json.dumps([*map(self._about.__getitem__, names), law]).encode()).hexdigest()

    def _over(self, tokens: int = 0) -> bool:
        """Return whether a budget has ended, with ``tokens`` added."""
        limit = self.settings.tokens
        return (limit is not None and self.state.tokens + tokens >= limit) or self._late()

    def _late(self) -> bool:
        limit = self.settings.seconds
        return limit is not None and shards.latest(self.seconds) >= limit

    @property
    def seconds(self) -> float:
        """Wall-clock seconds so far, with those of interrupted runs up to their last checkpoint."""
        return self.state.seconds + time.monotonic() - self._began

    def _absorb(self, number: int, planned: Round, drawn: Sequence[Drawn]) -> tuple[Row, list[float]]:
        """Add a round's draws to the buffer; return the row of figures of its first and largest law.

        The second value has the log-weights of that law's samples, or is empty for sft.
        """
        state, first, law = self.state, drawn[0], planned.draws[0][0]
        seen, unseen = self.sides(first.accepted)
        rate = rate_over(seen, first.attempts, self.units[0])
        row = Row(number, law, state.samples, state.tokens, self.seconds, rate, sum(seen))
        row.unseen_acceptance = rate_over(unseen, first.attempts, self.units[1]) if unseen else None
        if planned.learn == "sft":
            for each in drawn:
                state.buffer.extend(each.samples, 0, [0.0] * len(each.samples), [])
            return row, []
        log_base = [self.task.log_probabilities(self.task.model, each.samples) for each in drawn]
        if planned.learn == "replay":
            self._mixture.extend(number, planned, drawn, log_base)
            self._mixture.branch(number, planned, drawn)
            row.samples, row.tokens = state.samples, state.tokens
            row.mixture = float(state.buffer.partition().mean())
        ratios = [a - b for a, b in zip(log_base[0], self._mixture.log_law(law, first, log_base[0]), strict=True)]
        if planned.learn == "dpg":
            state.counted += first.attempts
            for sample, ratio in zip(first.samples, ratios, strict=True):
                state.partition[sample.prompt] += math.exp(ratio)
            row.mixture = float(np.mean(state.partition)) / state.counted
        summarise(row, *self.sides(first.log_weights(ratios)), self.units)
        return row, ratios

    # Learning

    def _dpg(self, drawn: Drawn, ratios: Sequence[float]) -> None:
        """Take one step of Algorithm 2: the mean over draws of P/(π Z) ∇ log π, where Z is the mean of P/π so far."""
        state = self.state
        attempts = drawn.attempts * self.held_out.count(False)
        pairs = [
            (sample, math.exp(ratio) * state.counted / state.partition[sample.prompt] / attempts)
            for sample, ratio in zip(drawn.samples, ratios, strict=True)
            if not self.held_out[sample.prompt]
        ]
        if pairs:
            samples, weights = zip(*pairs, strict=True)
            require_number(update(self.policy, self._optimizer, self.task, samples, weights, exact_ends=False))
        state.dpg_steps += 1

    def _learn(self, number: int, replays: bool) -> bool:
        """Learn from the buffer: while the held-out KL falls (replay), or for a number of epochs (sft).

        Returns whether learning has ended; if not, the time is over, and more of it goes on from the last checkpoint.
        """
        settings, fit, samples = self.settings, self.state.fit, self.state.buffer.samples
        assert fit is not None
        if replays:
            shares, held_out = (self.state.buffer.shares(held_out=side) for side in (False, True))
            # Without held-out samples there is no criterion to stop, so one look is the limit.
            last = settings.updates if held_out.any() else settings.look
            last = min(last, math.ceil(OFTEN * kong(shares) / settings.batch_size)) if shares.any() else 0
        else:
            shares = np.array([not self.held_out[sample.prompt] for sample in samples], float)
            last = math.ceil(settings.epochs * shares.sum() / settings.batch_size)
            shares, held_out = shares / max(shares.sum(), 1.0), np.zeros(0)
        if replays and fit.step == 0 and last:
            self._look(fit, held_out)
        ended = True
        while fit.step < last:
            if fit.step and fit.step % settings.look == 0 and self._late():
                ended = False
                break
            if self._settled(fit):
                break
            chance = np.random.default_rng((settings.seed, number, fit.step))
            picked = chance.choice(len(shares), settings.batch_size, p=shares)
            fit.step += 1
            for group in self._optimizer.param_groups:
                group["lr"] = settings.rate * min(1.0, fit.step / WARM_UP) * (COOLED if fit.cooled else 1.0)
            weights = np.full(len(picked), 1 / len(picked))
            loss = update(
                self.policy, self._optimizer, self.task, [samples[i] for i in picked], weights,
                exact_ends=replays, clip=CLIP,
            )  # fmt: skip
            if not replays:  # replay notices divergence at the next look and returns to its best policy
                require_number(loss)
            if fit.step % settings.look == 0 or fit.step == last:
                if replays:
                    self._look(fit, held_out)
                self._keep()
        if replays and last:
            self._shrink(fit, held_out)
        return ended

    def _settled(self, fit: Fit) -> bool:
        """Return whether a round is over; at first it restarts from its best policy with a lower learning rate."""
        if fit.bad < self.settings.patience:
            return False
        if fit.cooled:
            return True
        self.policy.load_state_dict(fit.best_state)
        self._optimizer = self.policy.adam(self.settings.rate)
        fit.cooled, fit.bad = True, 0
        return False

    def _look(self, fit: Fit, held_out: Floats) -> None:
        """Update the best policy if the held-out KL has fallen; without held-out samples the last one is best."""
        value = -math.inf
        if held_out.any():
            value = self._held_out_kl(held_out)
            logger.info("update %d: held-out KL %.3f nats", fit.step, value)
        if value < fit.best or not held_out.any():
            fit.best, fit.best_step, fit.best_state, fit.bad = value, fit.step, self.policy.state_dict(), 0
        else:
            fit.bad += 1

    def _held_out_kl(self, held_out: Floats) -> float:
        buffer = self.state.buffer
        indexes, often = np.unique(systematic(held_out, _MEASURED, 0.5), return_counts=True)
        log_policy = self.task.log_probabilities(self.policy.model, [buffer.samples[i] for i in indexes])
        mean = np.average(np.array(buffer.log_base)[indexes] - log_policy, weights=often)
        of_prompts = np.bincount([sample.prompt for sample in buffer.samples], held_out, buffer.prompts)
        met = of_prompts > 0
        return float(mean - of_prompts[met] @ np.log(buffer.partition()[met]))

    def _shrink(self, fit: Fit, held_out: Floats) -> None:
        """Set the round's best policy, interpolated towards the model if that lowers the held-out KL."""
        chosen = fit.best_state
        for strength in STRENGTHS if held_out.any() and fit.best_step else ():
            numbers = self.policy.towards_base(fit.best_state, strength)
            self.policy.load_state_dict(numbers)
            value = self._held_out_kl(held_out)
            if value < fit.best:
                chosen, fit.best, fit.row.strength = numbers, value, strength
        self.policy.load_state_dict(chosen)

    def kl_on_gold(self) -> Estimate | None:
        """Return KL(g‖π) in nats from draws of g, on prompts that are trained on, or None if there are too few."""
        if self.gold is None:
            return None
        log_policy = self.task.log_probabilities(self.policy.model, self.gold.drawn.samples)
        return self.gold.kl(log_policy, self.held_out, self.units[0])

    # Checkpoints

    def _keep(self) -> bool:
        """Write a checkpoint in the main process; return whether it was written."""
        if not shards.is_main():
            return False
        state, now = self.state, time.monotonic()
        state.seconds, self._began = state.seconds + now - self._began, now
        tensors, data = state_to_json(state)
        tensors |= placed_under("policy", self.policy.state_dict())
        for i, kept in self._optimizer.state_dict()["state"].items():
            tensors |= placed_under(f"adam {i}", kept)
        return write_checkpoint(self.folder / "checkpoints", tensors, {**data, "about": self._about})

    def _resume(self) -> None:
        settings = self.settings
        found = newest_checkpoint(self.folder / "checkpoints")
        shards.wait()  # no process may write the next checkpoint before all have read this one
        if found is None:
            self.state.asked, self.state.plan = settings.samples, rounds(settings)
            return
        tensors, data = found
        if data["about"] != self._about:
            names = dict.fromkeys([*self._about, *data["about"]])
            differs = [name for name in names if data["about"].get(name) != self._about.get(name)]
            raise UsageError(
                f"{str(self.folder)!r} contains another training, which differs in {', '.join(differs)}; give another "
                "folder, or remove this one"
            )
        self.state = state = read_state(tensors, data)
        if state.asked != settings.samples:
            begun = state.plan[: state.done + (state.fit is not None)]
            state.asked, state.plan = settings.samples, continued(begun, settings, state.samples)
        self.policy.load_state_dict(under("policy", tensors))
        kept = {i: under(f"adam {i}", tensors) for i in range(len(self.policy.parameters))}
        if kept[0]:
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": kept})

    def _what_this_is(self) -> dict[str, Any]:
        """Return the identity of this training as plain JSON, without budgets, which may be changed."""
        free = {"samples", "seconds", "tokens", "gold_attempts", "final_attempts", "draw_batch_size", "trackers",
                "name", "model", "dtype", "constraint", "start"}  # fmt: skip
        about = self.settings.model_dump(mode="json", exclude=free)
        model = self.task.model
        about |= {"constraint": self.task.guarded.constraint.digest, "dtype": str(model.dtype)}
        if self.settings.start:
            about["start"] = self.policy.digest()
        found: dict[str, Any] = json.loads(json.dumps({**about, "model": fingerprint(model).model_dump()}))
        return found


def _require_held_out(settings: TrainingSettings, start: CardPrompts) -> None:
    """Raise if the adapter that a training starts from was trained on prompts that the training holds out."""
    known = [start.has_rule(each) for each in settings.fields or ()] or list(map(start.has, settings.given_prompts))
    trained_on = [each is True for each, held in zip(known, settings.held_out_prompts, strict=True) if held]
    if any(trained_on):
        raise UsageError(
            f"start: this adapter was trained on {sum(trained_on)} of the {len(trained_on)} held-out prompts, its card "
            "says; give held_out as in its training, or 0"
        )
