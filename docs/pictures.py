"""The pictures of exactness.md: small worlds whose g is enumerated, and what is drawn from them.

``python docs/pictures.py`` writes them to ``docs/images`` and prints the figures that the page quotes. Everything is
drawn by guardwrap; only the wrong ways to choose are written out here, on the same attempts.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import torch
from matplotlib import pyplot
from matplotlib.patches import Rectangle

from guardwrap import Budget, Constraint, Estimate, GuardedGenerator, Keyword, Length, Regex, Verdict, constraint
from guardwrap.metrics import acceptance_rate
from guardwrap.samplers import Attempt
from guardwrap.testing import World, table_world

IMAGES = Path(__file__).parent / "images"
SIDE_BY_SIDE = 16
TOKENS = 20  # of the token limit

# On a transparent ground, and of middling lightness: legible on white and on black.
INK, BLUE, ORANGE, FAINT = "#7b7b7b", "#2a74c4", "#c2640a", "#8a8a8a55"


@constraint
def no_x(text: str) -> bool:
    """No x: judged on whole texts only, so that attempts that fail run to their end as well."""
    return "x" not in text


def lengths_world() -> World:
    """A tenth of the texts has no x; half of those are short (one or two letters), half long (six to twelve)."""
    world = table_world(letters=" slx", max_new_tokens=13)
    end, _, short, long, bad = range(5)
    steps = torch.zeros(world.model.table.shape)
    steps[:, :, end] = 1.0  # where nothing else is said, a text ends
    steps[0, :] = torch.tensor([0.0, 0.0, 0.05, 0.05, 0.9])
    for place in range(1, 13):
        steps[place, short] = row(end, 0.5 if place == 1 else 1.0, short)
        steps[place, long] = row(end, 0.0 if place < 6 else 1 / (13 - place), long)
        steps[place, bad] = row(end, 0.12 if place < 12 else 1.0, bad)
    with torch.no_grad():
        world.model.table.copy_(steps.log())
    return world


def row(end: int, chance: float, letter: int) -> torch.Tensor:
    """One more letter, or the end."""
    step = torch.zeros(5)
    step[end], step[letter] = chance, 1 - chance
    return step


def is_short(text: str) -> bool:
    return len(text) <= 2


@dataclass
class Order:
    """Shares of short texts among what was returned, and one prompt's attempts to show."""

    gold: float
    finishing_exactly: float
    shares: dict[str, Estimate]
    shown: list[Attempt]


def order(prompts: int = 2000) -> Order:
    """Let several ways of choosing return one text a prompt, from the same attempts."""
    world = lengths_world()
    guarded = GuardedGenerator(world.pipeline(), no_x, seed=0, batch_size=64, on_exhausted="none")
    given = [world.prompt] * prompts
    drawn = guarded.attempts(given, SIDE_BY_SIDE, weigh=False, **world.settings)
    limited = guarded.run(given, budget=Budget(max_tokens=TOKENS), progress=False, **world.settings)
    chosen = {
        "in launch order": [first(attempts) for attempts in drawn],
        "whichever ends first": [first(sorted(attempts, key=tokens)) for attempts in drawn],
        "token limit,\nlooked at before": [outcome.texts[0] for outcome in limited if outcome.ok],
        "token limit that\nends what runs": [first(within(attempts)) for attempts in drawn],
    }
    law = {world.draw(ids).text: p for ids, p in world.law().items()}
    good = sum(p for text, p in law.items() if no_x.accepts(text))
    short = sum(p for text, p in law.items() if no_x.accepts(text) and is_short(text))
    # At least one short text among those that end first: all of them begin together.
    finishing = (1 - (1 - short) ** SIDE_BY_SIDE) / (1 - (1 - good) ** SIDE_BY_SIDE)
    shares = {name: share_of([is_short(text) for text in texts if text is not None]) for name, texts in chosen.items()}
    telling = (a for a in drawn if first(a) and not is_short(first(a)) and is_short(first(sorted(a, key=tokens))))
    return Order(short / good, finishing, shares, next(telling))


def share_of(holds: list[bool]) -> Estimate:
    """A share with its 95 % interval."""
    return acceptance_rate(sum(holds), len(holds), stopped_on_acceptance=False)


def tokens(attempt: Attempt) -> int:
    return len(attempt.draw.token_ids)


def first(attempts: list[Attempt]) -> str | None:
    return next((attempt.draw.text for attempt in attempts if attempt.satisfied), None)


def within(attempts: list[Attempt]) -> list[Attempt]:
    """Attempts one after the other, as far as they end before the limit."""
    spent = [sum(map(tokens, attempts[: i + 1])) for i in range(len(attempts))]
    return [attempt for attempt, total in zip(attempts, spent, strict=True) if total <= TOKENS]


@dataclass
class Masking:
    """Laws over texts without a b: what they should be, what rejection drew, what masking drew."""

    texts: list[str]
    base: list[float]
    gold: list[float]
    rejection: list[Estimate]
    masking: list[Estimate]


def masking(draws: int = 4000) -> Masking:
    """Ban a letter twice: by rejection, and by giving its token no probability."""
    world, judged = table_world(seed=7, letters="ab", max_new_tokens=4), ~Regex("b")
    gold = {world.draw(ids).text: p for ids, p in world.gold(judged).items()}
    base: Counter[str] = Counter()
    for ids, p in world.law().items():
        base[world.draw(ids).text] += p
    texts = sorted(gold, key=len)
    guarded = GuardedGenerator(world.pipeline(), judged, seed=0, batch_size=64)
    banned = {"suppress_tokens": [world.tokenizer.convert_tokens_to_ids("b")]}
    found = []
    for extra in ({}, banned):
        (outcome,) = guarded.run(world.prompt, num_return_sequences=draws, budget=Budget(max_attempts=None),
                                 **world.settings, **extra)  # fmt: skip
        found.append([share_of([each == text for each in outcome.texts]) for text in texts])
    return Masking(texts, [base[t] for t in texts], [gold[t] for t in texts], *found)


GROWING = (
    (~Regex(r"\b\d{3}-\d{4}\b"), "Call 555-0199 now."),
    (~Regex(r"\b\d{3}-\d{4}\b"), "Call 555-01992 now."),
    (Keyword("tea"), "One cup of tea, please."),
    (Length(max=3, unit="words"), "One cup of tea, please."),
)
"""Constraints, and texts that grow under them."""


def verdicts(judged, text: str) -> list[Verdict]:
    """What is known after each character."""
    return [judged.verdict(text[: end + 1]) for end in range(len(text))]


SEED_RUNS = ((1, 7), (3, 7), (16, 7), (16, 8))
"""Batch sizes and seeds."""


def seeds(count: int = 8) -> list[list[Attempt]]:
    """Draw the attempts of one prompt under several batch sizes, and under another seed."""
    world = table_world(seed=3, letters="ab", max_new_tokens=4)
    guarded = GuardedGenerator(world.pipeline(), Keyword("a", whole_words=False) & ~Regex("b"))
    options = {"weigh": False, **world.settings}
    return [guarded.attempts(world.prompt, count, batch_size=b, seed=s, **options)[0] for b, s in SEED_RUNS]


def draw_order(found: Order, path: Path) -> None:
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(5, 6.6), gridspec_kw={"height_ratios": [4, 3]})
    shown = found.shown
    good = [i for i, attempt in enumerate(shown) if attempt.satisfied]
    for i, attempt in enumerate(shown):
        above.barh(i, tokens(attempt), color=BLUE if i in good else FAINT, height=0.7)
    for i, label, colour in (
        (good[0], "launched first", BLUE),
        (min(good, key=length_of(shown)), "ends first", ORANGE),
    ):
        above.annotate(label, (tokens(shown[i]), i), (4, -4), textcoords="offset points", color=colour)
    above.invert_yaxis()
    above.set_yticks(range(0, 16, 5), range(1, 17, 5))
    above.set_xticks(range(0, 16, 5))
    above.set(xlabel="tokens", ylabel="attempt", xlim=(0, 17))
    above.set_title(f"{SIDE_BY_SIDE} attempts begin together; {len(good)} satisfy b")
    names = list(found.shares)
    for i, name in enumerate(names):
        share = found.shares[name]
        biased = not share.low <= found.gold <= share.high
        below.barh(i, share.value, color=ORANGE if biased else BLUE, height=0.6)
        below.plot([share.low, share.high], [i, i], color=INK, linewidth=2)
        below.text(share.high + 0.02, i, f"{share.value:.0%}".replace("%", " %"), va="center")
    below.axvline(found.gold, color=INK, linestyle="--", linewidth=1)
    below.invert_yaxis()
    below.set_yticks(range(len(names)), names)
    below.set_xticks([0, 0.25, 0.5, 0.75], ["0 %", "25 %", "50 %", "75 %"])
    below.set(xlim=(0, 0.85), title="Short texts among those returned")
    save(figure, path)


def length_of(attempts: list[Attempt]) -> Callable[[int], int]:
    return lambda i: tokens(attempts[i])


def draw_masking(found: Masking, path: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(5, 3.6))
    places = range(len(found.texts))
    axes.bar([p - 0.27 for p in places], found.gold, 0.25, color=FAINT, edgecolor=INK, label="g, enumerated")
    for shift, estimates, colour, label in (
        (0, found.rejection, BLUE, "rejection"),
        (0.27, found.masking, ORANGE, "masking"),
    ):
        axes.bar([p + shift for p in places], [e.value for e in estimates], 0.25, color=colour, label=label)
        for p, e in zip(places, estimates, strict=True):
            axes.plot([p + shift] * 2, [e.low, e.high], color=INK, linewidth=2)
    axes.set_xticks(list(places), [f"“{text}”" for text in found.texts])
    axes.set(ylabel="share of texts", title="Texts of up to four letters without a b")
    axes.legend(frameon=False, labelcolor=INK)
    save(figure, path)


def cell(axes: pyplot.Axes, x: float, y: float, text: str, colour: str | None) -> None:
    """A filled cell with white letters, or an outline."""
    look = {"facecolor": colour, "linewidth": 0} if colour else {"fill": False, "edgecolor": FAINT}
    axes.add_patch(Rectangle((x, y), 0.92, 0.92, **look))
    letters = {"color": "white" if colour else INK, "family": "monospace", "fontsize": 10}
    axes.text(x + 0.46, y + 0.5, text, ha="center", va="center", **letters)


def spelled(judged: Constraint) -> str:
    return repr(judged).replace("pattern='", "r'").replace(r"\\", "\\")


def draw_verdicts(path: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(5, 3.6))
    colours = {Verdict.UNDECIDED: None, Verdict.VIOLATED: ORANGE, Verdict.SATISFIED: BLUE}
    for i, (judged, text) in enumerate(GROWING):
        axes.text(0, 2.4 * i - 0.3, spelled(judged), family="monospace", fontsize=10)
        for j, (letter, verdict) in enumerate(zip(text, verdicts(judged, text), strict=True)):
            cell(axes, j, 2.4 * i, letter, colours[verdict])
    below = 2.4 * len(GROWING) - 0.4
    for i, (verdict, colour) in enumerate(colours.items()):
        cell(axes, 8 * i, below, "", colour)
        axes.text(8 * i + 1.3, below + 0.5, verdict.name, va="center")
    axes.set(xlim=(0, 24), ylim=(below + 1.2, -1.4))
    axes.axis("off")
    save(figure, path)


def draw_seeds(runs: list[list[Attempt]], path: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(5, 2))
    for i, (attempts, (size, seed)) in enumerate(zip(runs, SEED_RUNS, strict=True)):
        axes.text(-0.2, i + 0.5, f"seed {seed}, batch {size}", ha="right", va="center")
        for j, attempt in enumerate(attempts):
            cell(axes, j, i, attempt.draw.text or "“”", BLUE if attempt.satisfied else None)
    for j in range(len(runs[0])):
        axes.text(j + 0.46, -0.3, f"{j + 1}", ha="center", va="center")
    axes.set(xlim=(-3.6, len(runs[0])), ylim=(len(runs), -0.7))
    axes.axis("off")
    save(figure, path)


def save(figure: pyplot.Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None})
    pyplot.close(figure)


def main(folder: Path = IMAGES) -> None:
    matplotlib.use("Agg")
    matplotlib.rcParams.update({
        "svg.hashsalt": "guardwrap", "svg.fonttype": "none", "font.size": 11, "axes.titlesize": 11,
        "axes.spines.top": False, "axes.spines.right": False, **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
        ),
    })  # fmt: skip
    ordered, masked = order(), masking()
    draw_order(ordered, folder / "order.svg")
    draw_masking(masked, folder / "masking.svg")
    draw_verdicts(folder / "verdicts.svg")
    draw_seeds(seeds(), folder / "seeds.svg")
    print(f"short: g {ordered.gold:.1%}, finishing order exactly {ordered.finishing_exactly:.1%}")
    for name, share in ordered.shares.items():
        print(" ".join(name.split()), share)
    for values in zip(masked.texts, masked.gold, masked.rejection, masked.masking, strict=True):
        print(*values)


if __name__ == "__main__":
    main()
