"""The cases of engine.py as data, each with its target."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guardwrap import Constraint, Keyword, Length, Regex

LICENCE = (Path(__file__).parents[1] / "LICENSE").read_text()
STORY = """Once upon a time there was a little girl named Lily. She lived with her mom and dad in a small house near the
forest. One day Lily found a red ball under a big tree. It was old and dirty, but she liked it very much. "Can I keep
it?" she asked her mom. Her mom smiled and said yes. They washed the ball together and it was shiny again. Lily took the
ball to the park to play with her friend Tom. Tom threw the ball high in the air, and it landed in the pond. Lily was
sad, but a big brown dog jumped into the water and brought it back. Everyone laughed and clapped. From that day on the
dog came to the park every morning, and the three friends played until the sun went down. """

PROMPTS: Mapping[str, Callable[[Any], Any]] = {
    "begin": lambda tokenizer: "" if tokenizer("")["input_ids"] else tokenizer.bos_token,
    "story": lambda tokenizer: "Once upon a time",
    "chat": lambda tokenizer: [{"role": "user", "content": "Write one sentence about a coffee mug."}],
    # 498 tokens for the embedded model, with its chat template.
    "document": lambda tokenizer: [
        {
            "role": "user",
            "content": "Summarise in one sentence:\n\n" + tokenizer.decode(tokenizer(LICENCE)["input_ids"][:460]),
        }
    ],
}
"""From a tokenizer to a prompt: text or chat."""


@dataclass(frozen=True)
class Bound:
    """What a ratio must be: ``sign`` is ≥ or ≤."""

    sign: str
    value: float

    def __str__(self) -> str:
        return f"{self.sign} {self.value:g}"

    def met(self, ratio: float) -> bool:
        return ratio >= self.value if self.sign == "≥" else ratio <= self.value


@dataclass(frozen=True, kw_only=True)
class Case:
    """Texts of one prompt, drawn by guardwrap and by its rivals.

    Parameters
    ----------
    name
        In the tables.
    target
        Of the first figure.
    prompt
        Which of PROMPTS.
    constraint
        What texts must satisfy.
    texts
        How many are returned.
    settings
        Of ``generate``.
    ends
        ``"eos"``, ``"never"`` (all texts have ``max_new_tokens``) or ``"full stop"`` (that, or eos).
    batch
        Rows, at most.
    model, dtype
        Which of the two models, ``"chat"`` or ``"base"``, and in which precision.
    repeats
        How often, if not as often as the command says; the n-th time has seed n.
    most
        Attempts, at most; None is no limit.
    """

    name: str
    target: Bound
    prompt: str
    constraint: Constraint
    texts: int
    settings: Mapping[str, Any]
    ends: str = "eos"
    batch: int = 32
    model: str = "chat"
    dtype: str = "float32"
    repeats: int | None = None
    most: int | None = None


@dataclass(frozen=True, kw_only=True)
class Paired(Case):
    """Time against loops that return the same number of texts; the target is against the first of them.

    A target of ≥ is for rival / ours, one of ≤ for ours / rival, of each of the ``measures``.
    """

    rivals: tuple[str, ...] = ("retry", "cached")
    measures: tuple[str, ...] = ("cpu_s",)


@dataclass(frozen=True, kw_only=True)
class PerAttempt(Case):
    """CPU time of an attempt against that of a text of plain ``generate``, which draws ``samples`` of them."""

    samples: int = 512


@dataclass(frozen=True, kw_only=True)
class Peak(Case):
    """Peak memory against plain ``generate`` for the same number of texts, each in a process of its own."""


@dataclass(frozen=True, kw_only=True)
class Least(Case):
    """Row-steps over one for each token but the first of the attempts up to the last one accepted.

    That is the least without sharing rows among attempts with the same tokens so far, so a ratio can be below 1.
    """


@dataclass(frozen=True, kw_only=True)
class Busy(Case):
    """Share of the slots that are busy, with prompts of different lengths, until the last prompt is taken in."""

    prompts: int = 1000
    lengths: tuple[int, int] = (3, 200)  # tokens


@dataclass(frozen=True, kw_only=True)
class Together(Busy):
    """Passes of the model and CPU time for many prompts at once, against ``generate`` on all of them, padded.

    ``way``: ``"rules"`` (one call, with a rule for each prompt), ``"callers"`` (a thread for each), or
    ``"temperatures"`` (callers, each with a temperature of its own).
    """

    lengths: tuple[int, int] = (8, 20)
    way: str


ANYTHING = Length(min=0)
COMMA, MUG, PEOPLE = ~Regex(","), Keyword("mug"), Keyword("people")
AND = ~Keyword("and")  # AR of a sentence of a children's story ≈ .5
ONE_LINE = ~Regex(r"\n")  # AR of a summary of the document ≈ .6
PHONE = ~Regex(r"\b\d{3}-\d{4}\b")  # AR ≈ 1
USUAL = {"do_sample": True, "temperature": 0.7, "top_k": 50}
LONG = USUAL | {"max_new_tokens": 128}
SHORT = USUAL | {"max_new_tokens": 32}
FIXED = USUAL | {"max_new_tokens": 64}
PURE = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 30}
SENTENCE = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 48}


def in_both_dtypes(case: Paired) -> tuple[Paired, Paired]:
    """The case, and the same in bfloat16."""
    return case, replace(case, name=f"{case.name}, bfloat16", dtype="bfloat16")


CASES: tuple[Case, ...] = (
    Paired(
        name="no constraint, chat prompt, up to 128 tokens, 32 texts",
        target=Bound("≥", 2),
        prompt="chat",
        constraint=ANYTHING,
        texts=32,
        settings=LONG,
        rivals=("generate",),
    ),
    *in_both_dtypes(
        Paired(
            name="no constraint, 64 tokens each, 64 texts",
            target=Bound("≥", 1.3),
            prompt="story",
            constraint=ANYTHING,
            texts=64,
            settings=FIXED,
            ends="never",
            batch=64,
            rivals=("generate",),
        )
    ),
    *in_both_dtypes(
        Paired(
            name="no comma, 32 texts",
            target=Bound("≥", 15),
            prompt="chat",
            constraint=COMMA,
            texts=32,
            settings=LONG,
        )
    ),
    Paired(
        name='must contain "mug", 32 texts',
        target=Bound("≥", 4.5),
        prompt="chat",
        constraint=MUG,
        texts=32,
        settings=LONG,
    ),
    Paired(
        name="no phone number (AR ≈ 1), one text of 64 tokens: latency",
        target=Bound("≤", 1),
        prompt="chat",
        constraint=PHONE,
        texts=1,
        settings=FIXED,
        ends="never",
        rivals=("generate",),
        measures=("cpu_s", "wall_s"),
        repeats=9,
    ),
    Paired(
        name="prompt of 500 tokens, one-line summary (AR ≈ .6), 32 texts, float32",
        target=Bound("≥", 5),
        prompt="document",
        constraint=ONE_LINE,
        texts=32,
        settings=SHORT,
    ),
    Paired(
        name="prompt of 500 tokens, one-line summary (AR ≈ .6), 32 texts, bfloat16",
        target=Bound("≥", 2),
        prompt="document",
        constraint=ONE_LINE,
        texts=32,
        settings=SHORT,
        dtype="bfloat16",
    ),
    *(
        PerAttempt(
            name=f'must contain "people" (AR ≈ .013), 30 tokens from bos, batch {batch}: an attempt',
            target=Bound("≤", 0.65),
            prompt="begin",
            constraint=PEOPLE,
            texts=8,
            settings=PURE,
            batch=batch,
            model="base",
        )
        for batch in (32, 64)
    ),
    Least(
        name="no comma, 32 texts: row-steps",
        target=Bound("≤", 1.10),
        prompt="chat",
        constraint=COMMA,
        texts=32,
        settings=LONG,
        repeats=8,
    ),
    Least(
        name='must contain "mug", 32 texts: row-steps',
        target=Bound("≤", 1.10),
        prompt="chat",
        constraint=MUG,
        texts=32,
        settings=LONG,
        repeats=8,
    ),
    Peak(
        name="no comma, chat prompt, up to 128 tokens, 32 texts: peak memory",
        target=Bound("≤", 1.10),
        prompt="chat",
        constraint=COMMA,
        texts=32,
        settings=LONG,
    ),
    Peak(
        name="prompt of 500 tokens, one-line summary, 32 texts: peak memory",
        target=Bound("≤", 1.10),
        prompt="document",
        constraint=ONE_LINE,
        texts=32,
        settings=SHORT,
    ),
    Busy(
        name='1 000 prompts of 3 to 200 tokens, a sentence without "and" (AR ≈ .5) each: slots busy',
        target=Bound("≥", 0.95),
        prompt="story",
        constraint=AND,
        texts=1,
        settings=SENTENCE,
        ends="full stop",
        model="base",
        repeats=3,
    ),
    *(
        Together(
            name=name,
            target=Bound("≤", 1.1),
            prompt="story",
            constraint=~Keyword("zebra"),
            texts=1,
            settings=FIXED,
            ends="never",
            batch=count,
            prompts=count,
            way=way,
            repeats=3,
        )
        for name, count, way in (
            ("32 prompts, a rule each, 64 tokens", 32, "rules"),
            ("64 callers, 64 tokens", 64, "callers"),
            ("32 callers, a temperature each, 64 tokens", 32, "temperatures"),
        )
    ),
)


def quick(case: Case) -> Case:
    """The same case, small: to see that it runs, not to measure."""
    small: dict[str, Any] = {"texts": min(case.texts, 2), "batch": min(case.batch, 4), "repeats": None, "most": 32}
    small["settings"] = {**case.settings, "max_new_tokens": min(case.settings["max_new_tokens"], 8)}
    if isinstance(case, Busy):
        small |= {"prompts": 4 if isinstance(case, Together) else 24, "lengths": (3, 20)}
    if isinstance(case, PerAttempt):
        small["samples"] = 8
    return replace(case, **small)
