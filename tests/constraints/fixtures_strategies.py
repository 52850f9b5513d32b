"""Strategies for random constraints and for difficult texts, and the property that every verdict must have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from guardwrap.constraints import All, AnyOf, Constraint, Finished, JSONSchema, Keyword, Length, Not, Python, Regex
from guardwrap.constraints.checking import run_check, run_verdict
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import TEXT_VIEWS
from guardwrap.errors import CheckFailed, ConstraintError, Unsatisfiable
from guardwrap.outcomes import Draw


def profile(examples: int) -> settings:
    """Return the settings of all properties: the given number of examples, the same ones in every run."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )


# ---------------------------------------------------------------------------------------------------- the property


def judged(constraint: Constraint, draw: Draw) -> bool | None:
    """Return the judgement of one draw, or None if the checker gives up."""
    try:
        return run_check(constraint, [draw])[0]
    except CheckFailed:
        return None


def assert_sound(constraint: Constraint, text: str, *, prompt: str = "", finished: bool = True) -> None:
    """Fail unless every verdict on a prefix agrees with the judgement of every text that begins with it.

    The texts are the prefixes themselves, from the given one down to the empty one.
    """
    verdicts = [run_verdict(constraint, text[:end]) for end in range(len(text) + 1)]
    if not any(verdicts):  # all of them UNDECIDED
        return
    for stop in range(len(text) + 1):
        accepted = judged(constraint, Draw(prompt, tuple(range(stop)), text[:stop], finished))
        wrong = Verdict.VIOLATED if accepted else Verdict.SATISFIED
        if accepted is not None and wrong in verdicts[: stop + 1]:
            prefix = text[: verdicts.index(wrong)]
            raise AssertionError(f"{constraint!r} is {wrong.name} on {prefix!r}, of {text[:stop]!r} it is {accepted}")


# ----------------------------------------------------------------------------------------------------------- texts

# Strategies are created once, not in each draw, because creating them took longer than the tests themselves.
up_to = cache(lambda most: st.integers(0, most))

LETTERS = ["a", "b", "A", "ab", "i", "I", "s", "k", "x"]
# Letters whose upper and lower case do not map one to one, combining marks, characters outside the basic plane.
AWKWARD = ["İ", "ı", "ß", "ẞ", "ſ", "\u212a", "é", "e\u0301", "\u0301", "🙂", "ﬁ", "\u0660", "Σ", "ς"]
SPACES = [" ", "  ", "\n", "\r", "\r\n", "\t", "\x0b", "\x1c", "\x85", "\u2028", "\u00a0"]
MARKS = [".", "!", "?", "…", ",", "-", "_", '"', "'", "”", ")", "Mr.", "e.g.", "A."]
DIGITS = ["0", "1", "8", "5", "18", "59", "42"]
SYNTAX = ["{", "}", "[", "]", ":", "\\", "```", "```json\n", "```\n", "true", "null", '"a"', '{"a": 1}', "e", "E", "+"]
PIECES = LETTERS * 3 + AWKWARD + SPACES * 2 + MARKS + DIGITS * 2 + SYNTAX

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-999, 999)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.sampled_from('ab"\\/\n\x7f\u2028é🙂{}[]:,'), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abé"), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def json_texts(draw: st.DrawFn) -> str:
    """Draw a value as JSON text, with random white space, escapes and number formats."""
    text = json.dumps(draw(json_values), ensure_ascii=draw(up_to(1)) == 1, indent=draw(INDENTS))
    return draw(MARGINS) + text + draw(MARGINS)


INDENTS, MARGINS = st.sampled_from([None, 1, "\t"]), st.sampled_from(["", "", " ", "\n", "\r\n\t"])


INSERTED = st.sampled_from(["", None, *PIECES, "NaN", "1", "e", "-"])  # None means: repeat the piece


@st.composite
def mutated(draw: st.DrawFn, source: st.SearchStrategy[str]) -> str:
    """Delete, repeat, replace or insert a few pieces of a text."""
    text = draw(source)
    for _ in range(1 + draw(up_to(2))):
        start = draw(up_to(len(text)))
        end = min(len(text), start + draw(up_to(3)))
        new = draw(INSERTED)
        text = text[:start] + (text[start:end] * 2 if new is None else new) + text[end:]
    return text


# --------------------------------------------------------------------------------------------------------- regexes

ATOMS = [
    *("a", "b", "A", "i", "s", "k", "ß", "İ", "ı", "é", "🙂", " ", "1", "8", r"\.", r"\n", "\n", "_", "-", '"'),
    *(
        ".",
        r"\d",
        r"\w",
        r"\s",
        r"\D",
        r"\W",
        r"\S",
        "[ab]",
        "[^a]",
        r"[\d ]",
        r"[^\W\d]",
        "[a-k]",
        "[İi]",
        "[^s]",
        "[]a]",
    ),
]
ASSERTIONS = [r"\b", r"\B", "^", "$", r"\A", r"\Z"]
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}", "{2,}", "{1,2}?", "*+", "++", "?+", "{0}", "{0,1}+"]
GROUPS = [
    *("({})", "(?:{})", "(?>{})", "(?i:{})", "(?-i:{})", "(?m:{})", "(?-m:{})", "(?s:{})", "(?-s:{})", "(?P<n>{})"),
    *("(?={})", "(?!{})", "(?<={})", "(?<!{})", "(?a:{})", "(?x: {} )", "(?x:{} # )\n)"),
]
REFERENCES = [r"\1", r"(?P=n)", r"(?(1)a|b)", r"(?(1)a)", r"\2"]


@cache
def patterns(atoms: Sequence[str] = tuple(ATOMS), depth: int = 2) -> st.SearchStrategy[str]:
    """Draw an expression, which need not be valid."""
    inner = patterns(atoms, depth - 1) if depth else st.nothing()
    several = st.lists(inner, min_size=2, max_size=3)
    repeats, groups, assertions = st.sampled_from(REPEATS), st.sampled_from(GROUPS), st.sampled_from(ASSERTIONS)
    atom, reference = st.sampled_from(atoms), st.sampled_from([*REFERENCES, *atoms])

    @st.composite
    def drawn(draw: st.DrawFn) -> str:
        parts = []
        for _ in range(1 + draw(up_to(2))):
            choice = draw(up_to(12 if depth else 8))
            if choice <= 6:
                part = draw(atom)
            elif choice == 7:
                part = draw(assertions)
            elif choice == 8:
                part = draw(reference)
            elif choice <= 10:
                part = draw(groups).replace("{}", draw(inner))
            else:
                part = "(?:" + "|".join(draw(several)) + ")"
            parts.append(part + (draw(repeats) if draw(up_to(3)) == 0 else ""))
        return "".join(parts)

    return drawn()


AWKWARD_PATTERNS = [
    *(
        r"\bab\b",
        r"ab\b",
        r"ab\B",
        r"a(?=b)",
        r"a(?!b)",
        r"a(?!bb)",
        r"(?<=a)b",
        r"(?<!a)b",
        r"a$",
        r"^a",
        r"^a$",
        r"a\Z",
    ),
    *(r"(?m)a$", r"(?m)^a$", r"(?m:a$)", r"(?-m:a$)", r"(?m:^)a", r"a|ab", r"a|ab$", r"(?:a|aa)+b", r"(a|ab)(c|bcd)?$"),
    *(
        r"(?>abb|a)b",
        r"(?>a|ab)\.",
        r"a*+a",
        r"(?>a*)b",
        r"(?:ab)?+a",
        r"(a)?(?(1)b|a)",
        r"(a)\1",
        r"(a|b)\1+$",
        r"(?P<n>a)(?P=n)",
    ),
    *(r"(?i)ß", r"(?i)ss", r"(?i)İ", r"(?i)i", r"(?i)k", r"(?i)[^k]", r"(?i)ſ", r"(?i)ﬁ", r"(?f)(?i)ss", r"(?i)\u212a"),
    *(
        r"\d{3}-\d{4}",
        r"\d+",
        r"\b\d+\b",
        r"(?:\d[ -]?){2,4}",
        r"\d+(?: \d+)?",
        r"\d+?",
        r"\d*",
        r"\d|\d\d",
        r"\d{2,4}(?!\d)",
    ),
    *(
        r"",
        r"()",
        r"(?:)*",
        r"a??",
        r"(?=)",
        r"(?!)",
        r"[^\s\S]",
        r"\s+$",
        r"\S+\s*\Z",
        r"(?s).*",
        r".*",
        r".+a",
        r"(?s).+a.*?b",
    ),
    *(
        r"(?=(a+))a*b\1",
        r"(?=(a+))\1",
        r"(?<=(a))\1",
        r"a(?=.{0,3}b)",
        r"a(?=.*b)",
        r"(?<=a.*)b",
        r"a(?<=a(?=b))",
        r"(?!a(?!b))a",
    ),
    *(
        r"(?:ab){e<=1}",
        r"(?:ab){i}",
        r"[[:alpha:]]+",
        r"[[a-b]--[b]]",
        r"(?V1)[[ab]--[b]]",
        r"\p{L}+",
        r"\X",
        r"\R",
        r"\m\w+\M",
    ),
    *(
        r"a\Kb",
        r"(?r)ab",
        r"(?|(a)|(b))\1",
        r"(a)(?1)",
        r"(?R)?a",
        r"a(*PRUNE)b|a",
        r"a(*SKIP)b|ab?",
        r"(*FAIL)",
        r"\Ga",
        r"(?w)\ba",
    ),
    *(
        r"(?x) a b # c",
        "(?x)a {2}",
        r"(?#x)a",
        r"a{,}",
        r"a{2}{2}",
        r"a{",
        r"a{}",
        r"a{,2}b",
        r"\1(a)",
        r"(?:\1a|(b))+",
        r"(\1a|b)+",
    ),
    *(
        r"\B",
        r"\B.",
        r"\b",
        r"\b\B",
        r"$^",
        r"(?m)$^",
        r"(?m)$.^",
        r"\n$",
        r"(?m)\n$",
        r"(?m)\r$",
        r"(?m)^\n",
        r"a(?m:$)\n",
    ),
    *(
        r"(?:(?=a)|b)a",
        r"(?:a(?=b))*",
        r"(?:a(?!b))*b",
        r"(?<![ab]) ",
        r"(?<=\b)a",
        r"(?=\b)a",
        r"a(?=\b)",
        r"a(?:(?=b)|$)",
        r"(?:$|a)b?",
    ),
    *(
        r"\0",
        r"\x61",
        r"\u0061",
        r"\N{LATIN SMALL LETTER A}",
        r"[\x61]",
        r"\141",
        r"[\b]",
        r"\a",
        r"[a\]]",
        r"[a\-b]",
        r"[^\n]",
        r"[\w-]",
    ),
    *(
        r"(?L)a",
        r"(?u)a",
        r"(?a)\w",
        r"(?a:\w)\w",
        r"(?e)(?:ab){e}",
        r"(?b)a",
        r"(?p)a",
        r"(?s)a.b",
        r"(?-s:.)",
        r"(?i)(?-i:a)B",
    ),
]


class Theme(NamedTuple):
    """Draw a text over a small alphabet, so that random texts often contain what a random constraint looks for."""

    pieces: tuple[str, ...]
    atoms: tuple[str, ...]
    words: tuple[str, ...]
    digits: bool = False
    flags: tuple[str, ...] = ("ignorecase", "multiline", "dotall", "verbose", "ascii")


WORDS = [
    *("a", "b", "ab", "aba", "a b", "aa", "bab", "i", "ı", "İ", "iix", "k", "ß", "ss", "s", "sß", "é", "e\u0301"),
    *("-a", "a-", "a.", ".", "🙂", " a", "Σ", "iixx", "\n", "a\nb", "1"),
]
THEMES = {
    "everything": Theme(tuple(PIECES), tuple(ATOMS), tuple(WORDS)),
    "lines": Theme(
        ("a", "b", "\n"),
        ("a", "b", "a", "b", r"\n", ".", "$", "(?-m:$)", "(?-m:^)"),
        ("a", "b", "ab", "aba", "a\nb", "\n", "aa"),
        flags=("multiline",),
    ),
    "words": Theme(
        ("a", "b", "ab", " ", "."),
        ("a", "b", " ", r"\w", r"\W", r"\b"),
        ("a", "b", "ab", "a b", "aba", "bab", "a.", "b a b"),
    ),
    "digits": Theme(
        tuple("18059 -a"), (r"\d", r"\d", r"\d", "[ -]", "1", r"\D"), ("1", "18", "1 8", "81", "181"), True
    ),
    "dotted": Theme(("i", "I", "ı", "İ", "iix", "IIX", " "), tuple("iıİxI"), ("i", "ı", "İ", "I", "iix", "IIX", "i x")),
    "sharp": Theme(("s", "S", "ß", "ẞ", "ſ", "sß", " "), tuple("sßſS"), ("s", "ß", "ſ", "ss", "sß", "ßs", "SS", "ẞẞ")),
    "sentences": Theme(
        ("a", "b", ".", "!", " ", "\n", "\r", "\x85", '"', "Mr.", "A."),
        ("a", "b", r"\.", " ", "^", "$"),
        ("a", "b", "a b", "mr"),
    ),
}

FLAGS = THEMES["everything"].flags
views: st.SearchStrategy[Any] = st.sampled_from([*("completion",) * 4, *TEXT_VIEWS])


def attempt(kind: type[Constraint], *args: object, **fields: object) -> Constraint:
    """Build a constraint; if its fields are invalid, return a fixed one instead."""
    try:
        return kind(*args, **fields)
    except ConstraintError:
        return Finished()


@cache
def regexes(theme: Theme) -> st.SearchStrategy[Constraint]:
    """Draw a Regex."""
    awkward = [pattern for pattern in AWKWARD_PATTERNS if r"\d" in pattern or not theme.digits]
    source = st.one_of(patterns(theme.atoms), patterns(theme.atoms), st.sampled_from(awkward))
    matches, flags = st.sampled_from(["search", "fullmatch"]), st.lists(st.sampled_from(theme.flags), max_size=2)

    @st.composite
    def drawn(draw: st.DrawFn) -> Constraint:
        luhn = draw(up_to(1 if theme.digits else 9)) == 0
        return attempt(
            Regex,
            draw(source),
            match="search" if luhn else draw(matches),
            flags=draw(flags),
            checksum="luhn" if luhn else None,
            on=draw(views),
            timeout=0.05,
        )

    return drawn()


@cache
def keywords(theme: Theme) -> st.SearchStrategy[Constraint]:
    """Draw a Keyword."""
    matches, words = (
        st.sampled_from(["any", "all", "none"]),
        st.lists(st.sampled_from(theme.words), min_size=1, max_size=3),
    )
    most, yes = st.none() | st.integers(0, 3), st.booleans()

    @st.composite
    def drawn(draw: st.DrawFn) -> Constraint:
        match = draw(matches)
        counts = {} if match == "none" else {"min_count": draw(up_to(3)), "max_count": draw(most)}
        return attempt(
            Keyword,
            draw(words),
            match=match,
            case_sensitive=draw(yes),
            whole_words=draw(yes),
            on=draw(views),
            **counts,
        )

    return drawn()


LIMITS = st.none() | st.integers(0, 6)
UNITS = st.sampled_from(["characters", "words", "sentences", "lines", "tokens"])


@st.composite
def lengths(draw: st.DrawFn) -> Constraint:
    """Draw a Length."""
    unit = draw(UNITS)
    on = "completion" if unit == "tokens" else draw(views)
    return attempt(Length, min=draw(LIMITS), max=draw(LIMITS), unit=unit, on=on)


TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"]


SCHEMAS: st.SearchStrategy[Any] = (
    st.sampled_from([True, False, {}, {"const": 1}, {"required": ["a"]}, {"pattern": "a$"}, {"enum": [None, "a"]}])
    | st.sampled_from(TYPES).map(lambda name: {"type": name})
    | st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True).map(lambda names: {"type": names})
    | st.sampled_from(TYPES).map(lambda name: {"anyOf": [{"type": name}, {"type": "null"}]})
    | st.sampled_from(TYPES).map(lambda name: {"not": {"type": name}})
)
PLACES: st.SearchStrategy[Any] = st.sampled_from(["text", "text", "text", "fenced"])


@st.composite
def json_schemas(draw: st.DrawFn) -> Constraint:
    """Draw a JSONSchema."""
    return JSONSchema(draw(SCHEMAS), where=draw(PLACES), on=draw(views))


def has_ab(text: str) -> bool:
    return "ab" in text


def has_ab_prefix(prefix: str) -> Verdict:
    return Verdict.SATISFIED if "ab" in prefix else Verdict.UNDECIDED


def short(text: str) -> bool:
    return len(text) <= 3


def short_prefix(prefix: str) -> Verdict:
    return Verdict.UNDECIDED if len(prefix) <= 3 else Verdict.VIOLATED


def even(text: str) -> bool:
    return len(text) % 2 == 0


def all_even(texts: list[str]) -> list[bool]:
    return [len(text) % 2 == 0 for text in texts]


callables = st.one_of(
    st.just(Python(has_ab, prefix=has_ab_prefix)),
    st.just(Python(short, prefix=short_prefix)),
    views.map(lambda on: Python(even, on=on)),
    views.map(lambda on: Python(all_even, batched=True, on=on)),
)


def leaves(theme: Theme) -> st.SearchStrategy[Constraint]:
    several = [regexes(theme)] * 3 + [keywords(theme)] * 2 + [lengths(), json_schemas(), callables]
    return st.one_of(*several)


nameable_leaves = st.one_of(
    regexes(THEMES["everything"]), keywords(THEMES["everything"]), lengths(), json_schemas(), st.just(Finished())
)


def compose(inner: st.SearchStrategy[Constraint]) -> st.SearchStrategy[Constraint]:
    """Combine constraints; if they plainly contradict each other, use a disjunction instead."""

    def conjunction(parts: list[Constraint]) -> Constraint:
        try:
            return All(parts)
        except Unsatisfiable:
            return AnyOf(parts)

    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(several.map(conjunction), several.map(AnyOf), inner.map(Not))


@cache
def trees_of(theme: Theme) -> st.SearchStrategy[Constraint]:
    leaf = leaves(theme)
    return st.one_of(leaf, leaf, st.recursive(leaf | st.just(Finished()), compose, max_leaves=5))


@cache
def texts_of(theme: Theme) -> st.SearchStrategy[str]:
    # Never short, because the property checks every prefix anyway.
    return st.lists(st.sampled_from(theme.pieces), min_size=8, max_size=14).map("".join)


texts = st.sampled_from(list(THEMES.values())).flatmap(texts_of)
mixed_texts = st.one_of(texts, json_texts(), mutated(json_texts()))
trees = st.sampled_from(list(THEMES.values())).flatmap(trees_of)
nameable_trees = st.recursive(nameable_leaves, compose, max_leaves=5)
