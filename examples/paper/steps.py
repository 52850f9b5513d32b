"""The steps of an experiment: samples of g, trainings, proposals, and properties of their texts."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiment import DPG, ITSELF, OURS, WARM, Paper
from judge import claims, cost
from keeping import digest_of, kept, slug
from texts import cloud, diversity, has_umap, keyword, sentence_scores, shown

from guardwrap import Classifier, GuardedGenerator, Keyword, Prompt, __version__
from guardwrap.evaluation.evaluation_run import Attempts, record
from guardwrap.evaluation.figures import figures_of
from guardwrap.metrics import acceptance_rate, kl_gold_base, kl_gold_guarded_from_gold
from guardwrap.metrics.intervals import mean_of
from guardwrap.outcomes import Draw, Estimate, plain
from guardwrap.samplers import Attempt
from guardwrap.training import Row, TrainingSettings, train
from guardwrap.training.rounds import Gold
from guardwrap.training.task import Sample
from guardwrap.training.trainer import Trainer

_VERSIONS = ("torch", "transformers", "numpy", "peft")


@dataclass
class Run:
    """An experiment. Every step caches its result in the folder, with a digest of its inputs.

    Parameters
    ----------
    settings
        The settings, scaled by ``--budget``.
    guarded
        The model with the constraint.
    out
        The output folder.
    embedder
        Hub id or path of the model that embeds texts.
    """

    settings: Paper
    guarded: GuardedGenerator
    out: Path
    embedder: str

    def __post_init__(self) -> None:
        self.constraint = self.guarded.constraint
        self.prompts = [self.settings.given(prompt) for prompt in self.settings.prompts]
        self.count = len(self.prompts)
        self.versions = {"guardwrap": __version__} | {name: version(name) for name in _VERSIONS}
        self.shared = Trainer(
            self.guarded, self.settings.training(ITSELF, self.settings.budgets[0]), self.out / "shared"
        )
        self.digest = self.shared.digest("paper")  # model, constraint, prompts, generation and seed

    @property
    def steps(self) -> dict[str, Callable[[], Any]]:
        """The steps that ``--only`` can name."""
        own = ("gold", "proposals", "keywords", "samplers", "diversity", "sentences", "cloud")
        return {name: partial(self.trained, name) for name in self.settings.methods} | {
            name: partial(getattr, self, name) for name in own
        }

    def kept(self, name: str, about: Any, make: Callable[[], Any]) -> Any:
        """Return the result of a step. It depends on ``about``, the model and constraint, and our version."""
        return kept(self.out / "steps", name, [__version__, self.digest, about], make)

    # Samples of g, and trainings that never see them

    @cached_property
    def gold(self) -> Gold:
        """Attempts of the model itself, with a separate seed. All KL is measured on those that are samples of g."""
        return _gold_of(self.shared)

    def trained(self, name: str) -> dict[int, Any]:
        """Train one method on each budget, continuing from a copy of the previous one or from scratch."""
        found: dict[int, Any] = {}
        before: Path | None = None
        about: list[Any] = []
        for budget in self.settings.budgets:
            if self.settings.anew(name):
                before, about = None, []
            settings = self.settings.training(name, budget)
            about = [*about, settings.model_dump(mode="json", exclude={"model", "name"})]
            folder = self.out / "trainings" / f"{slug(name)}-{budget}-{digest_of([self.digest, about])[:8]}"
            found[budget] = self.kept(f"{name} {budget}", about, partial(self._train, name, settings, folder, before))
            before = folder
        return found

    def _train(self, name: str, settings: TrainingSettings, folder: Path, before: Path | None) -> dict[str, Any]:
        if not folder.exists():
            partial_copy = folder.with_suffix(".partial")
            shutil.rmtree(partial_copy, ignore_errors=True)
            if before is None:
                self.gold  # noqa: B018  draws the samples to copy
                shutil.copytree(self.out / "shared" / "gold", partial_copy / "gold")
            else:
                shutil.copytree(before, partial_copy)
            partial_copy.rename(folder)
        return self._trained(name, self.guarded, settings, folder)

    def _trained(
        self, name: str, guarded: GuardedGenerator, settings: TrainingSettings, folder: Path
    ) -> dict[str, Any]:
        """Continue the training in a folder and return its results."""

        def tick(row: Row) -> None:
            print(f"  {name}: {row}", file=sys.stderr, flush=True)

        result = train(guarded, settings, folder, tick=tick)
        trainer = Trainer(guarded, settings, folder)  # loads the policy of the last checkpoint
        samples = _gold_of(trainer).drawn.samples
        curve = [{"samples": row.samples, "kl_gold": row.kl_gold} for row in result.curve if row.kl_gold]
        return {
            "samples": result.samples,
            "figures": dict(result.figures),
            "notes": list(result.notes),
            "curve": curve,
            "log_policy": trainer.task.log_probabilities(trainer.policy.model, samples),
            "folder": folder.name,
            "policy": trainer.policy.digest(),
        }

    # Proposals: constraint-aware prompts, and the adapters of the largest budget

    @cached_property
    def drawn(self) -> dict[str, Attempts]:
        """The attempts of every proposal, for each prompt."""
        found = {
            name: self.recorded(name, Prompt(text), {"template": text})
            for name, text in self.settings.templates().items()
        }
        for name in self.settings.methods:
            last = self.trained(name)[self.settings.budgets[-1]]
            adapter = str(self.out / "trainings" / last["folder"] / "adapter")
            found[name] = self.recorded(name, adapter, {"policy": last["policy"]})
        return found

    def recorded(
        self, name: str, source: Any, about: Mapping[str, str], guarded: Any = None, count: int | None = None
    ) -> Attempts:
        """Return attempts of a prompt or an adapter's folder; None is the model itself."""
        guarded, count = guarded or self.guarded, count or math.ceil(self.settings.attempts / self.count)
        law = {
            "name": name,
            "of": self.digest,
            "constraint": guarded.constraint.digest,
            "prompts": self.prompts,
            "generation": self.settings.generation,
            "seed": self.settings.seed,
            **about,
        }
        told = {} if source is None else {"adapter" if isinstance(source, str) else "proposal": source}
        return record(guarded, law, lambda: told, self.out / "attempts", count, self.versions)[0]

    @cached_property
    def proposals(self) -> dict[str, Any]:
        """Figures of the model itself and of every proposal, on the same samples of g (the paper's App. D)."""
        gold, templates = self.gold, self.settings.templates()
        counts = [(n, gold.drawn.attempts) for n in gold.drawn.accepted]
        itself = {"acceptance_rate": gold.drawn.acceptance, "cost": cost(counts)}
        if min(n for n, _ in counts):
            itself["kl_gold_proposal"] = mean_of([kl_gold_base(*each) for each in counts])
        found: dict[str, Any] = {ITSELF: {"told": None, "kl_gold_guarded": Estimate(0.0, 0.0, 0.0), **itself}}
        for name, attempts in self.drawn.items():
            if name in templates:
                hinted = self.shared.task.hinted(templates[name])
                log = self.kept(
                    f"{name} on g",
                    [templates[name], gold.drawn.attempts],
                    partial(self.shared.task.log_probabilities, self.shared.task.model, gold.drawn.samples, hinted),
                )
            else:
                log = self.trained(name)[self.settings.budgets[-1]]["log_policy"]
            found[name] = {"told": templates.get(name), **self.figures(log, attempts), "log_policy": log}
        return found

    def figures(self, log_policy: Sequence[float], attempts: Attempts) -> dict[str, Estimate | None]:
        """Return a proposal's figures from samples of g and its own attempts: means over prompts, in nats."""
        counts = [(sum(attempt.satisfied for attempt in each), len(each)) for each in attempts]
        ratios = self.gold.log_ratios(log_policy)
        total = sum(n for n, _ in counts), sum(n for _, n in counts)
        found = {
            "acceptance_rate": acceptance_rate(*total, stopped_on_acceptance=False),
            "cost": cost(counts),
            "kl_gold_proposal": self.gold.kl(log_policy),
        }
        if found["cost"] and found["kl_gold_proposal"]:
            each = zip(ratios, counts, strict=True)
            found["kl_gold_guarded"] = mean_of([kl_gold_guarded_from_gold(*ratio, n) for ratio, n in each])
        return found

    @cached_property
    def cap(self) -> str:
        """The constraint-aware prompt that is accepted most often."""
        names = self.settings.templates()
        return max(names, key=lambda name: self.proposals[name]["acceptance_rate"].value)

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """Texts of g and of g' of some proposals, over all prompts. Every text satisfies the constraint."""
        drawn = {name: self.drawn[name] for name in (DPG, WARM, self.cap, OURS)}
        return {"g": [self.shared.task.text_of(sample) for sample in self.gold.drawn.samples]} | {
            name: [a.draw.text for each in attempts for a in each if a.satisfied] for name, attempts in drawn.items()
        }

    # Properties of the texts

    @cached_property
    def keywords(self) -> dict[str, Any]:
        """Where each keyword occurs in the texts, and the sampler that forces it."""
        if not isinstance(self.constraint, Keyword):
            return {}
        accepted = [sample.token_ids for sample in self.gold.drawn.samples]
        (word,) = tuple(self.constraint.words)
        found = {word: self._keyword(self.constraint, self.groups, accepted, self.gold.drawn.attempts)}
        for word, template in self.settings.more_words.items():
            own = replace(self.constraint, words=(word,))
            guarded = GuardedGenerator(self.guarded.pipeline, own, batch_size=self.guarded.batch_size)
            found[word] = self._more(own, guarded, template)
        return found

    def _more(self, own: Keyword, guarded: GuardedGenerator, template: str) -> Any:
        """Train for another keyword on the smallest budget, and compare g, ours and a constraint-aware prompt."""
        (word,) = tuple(own.words)
        given: Any = self.settings.constraint  # a mapping if there are more words
        spelled = {**given, "words": [word]}
        settings = self.settings.training(OURS, self.settings.budgets[0]).model_copy(
            update={"constraint": spelled, "gold_attempts": self.settings.more_attempts}
        )
        about = settings.model_dump(mode="json", exclude={"model", "name"})
        folder = self.out / "trainings" / f"{slug(word)}-{digest_of([self.digest, about])[:8]}"
        name = f"{OURS} {word}"
        made = self.kept(name, about, lambda: self._trained(name, guarded, settings, folder))
        adapter = str(self.out / "trainings" / made["folder"] / "adapter")
        trainer = Trainer(guarded, settings, folder)
        gold = _gold_of(trainer).drawn

        def satisfied(name: str, source: Any, about: Mapping[str, str]) -> list[str]:
            return [a.draw.text for a in self.recorded(name, source, about, guarded)[0] if a.satisfied]

        texts = {
            "g": [trainer.task.text_of(sample) for sample in gold.samples],
            "CAP": satisfied(f"CAP {word}", Prompt(template), {"template": template}),
            OURS: satisfied(name, adapter, {"policy": made["policy"]}),
        }
        found = self._keyword(own, texts, [sample.token_ids for sample in gold.samples], gold.attempts)
        return {**found, "training": {"samples": made["samples"], "figures": made["figures"]}}

    def _keyword(
        self, what: Keyword, groups: Mapping[str, list[str]], gold: Sequence[tuple[int, ...]], attempts: int
    ) -> Any:
        task, longest = self.shared.task, self.settings.generation["max_new_tokens"]

        def decode(ids: Sequence[int]) -> str:
            return str(self.guarded.tokenizer.decode(ids, skip_special_tokens=True))

        def log_base(beginnings: Sequence[tuple[int, ...]]) -> list[float]:
            return task.log_probabilities(task.model, [Sample(0, ids, len(ids)) for ids in beginnings])

        return self.kept(
            f"keyword {what.words[0]}",
            [what.digest, groups, gold, attempts],
            lambda: keyword(what, groups, gold, attempts, longest, decode, log_base),
        )

    @cached_property
    def samplers(self) -> Any:
        """QRS and IMH on the attempts of our adapter, compared by the position of the keyword (App. G)."""
        settings, drawn, what = self.settings, self.gold.drawn, self.constraint
        if not isinstance(what, Keyword):
            return None
        task, rejected = self.shared.task, Attempt(Draw("", (), ""), False, -math.inf)
        base = [Attempt(Draw("", s.token_ids, task.text_of(s)), True, 0.0) for s in drawn.samples]
        base += [rejected] * (drawn.attempts - len(base))
        attempts, policy = self.drawn[OURS][0], self.trained(OURS)[settings.budgets[-1]]["policy"]
        about = [policy, len(attempts), drawn.attempts, settings.steps, settings.texts]
        return self.kept(
            "samplers",
            about,
            lambda: figures_of(
                "",
                base,
                {OURS: attempts},
                place=what,
                steps=settings.steps,
                texts=settings.texts,
                seed=settings.seed,
                replication=True,
            ).proposals[OURS],
        )

    @cached_property
    def diversity(self) -> Any:
        """How similar the texts of g and of g' are."""
        about = [self.groups, self.embedder]
        return self.kept("diversity", about, partial(diversity, self.groups, self.embedder, self.settings.seed))

    @cached_property
    def sentences(self) -> Any:
        """How positive each sentence is, if the constraint is a classifier."""
        if not isinstance(self.constraint, Classifier):
            return {}
        return self.kept("sentences", self.groups, partial(sentence_scores, self.groups, self.constraint.probabilities))

    @cached_property
    def cloud(self) -> Any:
        """The texts as points in a plane."""
        about = [self.groups, self.embedder, has_umap()]
        return self.kept("cloud", about, partial(cloud, self.groups, self.embedder, self.settings.seed))

    def results(self) -> dict[str, Any]:
        """Return all results as plain JSON, without local paths."""
        settings = self.settings.model_dump(exclude={"model", "trackers"})
        trainings = {name: self.trained(name) for name in self.settings.methods}
        gold = self.gold.drawn
        found = plain(
            {
                "settings": settings,
                "versions": self.versions,
                "gold": {
                    "attempts": gold.attempts * self.count,
                    "log_base": list(self.gold.log_base),
                    "prompts": [sample.prompt for sample in gold.samples],
                },
                "proposals": self.proposals,
                "trainings": trainings,
                "cap": self.cap,
                "keywords": self.keywords,
                "samplers": self.samplers,
                "diversity": self.diversity,
                "sentences": self.sentences,
                "cloud": self.cloud,
                "embedder": Path(self.embedder).name,
                "texts": {name: shown(texts, self.constraint) for name, texts in self.groups.items()},
            }
        )
        return {**found, "claims": plain(claims(found))}


def _gold_of(trainer: Trainer) -> Gold:
    """Return a training's samples of g, and draw them if necessary."""
    trainer.find_gold()
    assert trainer.gold is not None, "gold_attempts must not be 0"
    return trainer.gold
