"""Automata of expressions, and of what is counted, say of whole texts what their constraints say."""

import random
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guardwrap import Case, Constraint, Count, Edges, Finished, Length, OneOf, Regex, Split
from guardwrap.constraints.kinds.count import Item
from guardwrap.outcomes import Draw
from guardwrap.twists.automata import Automaton, minimized
from guardwrap.twists.pattern_programs import CharacterClasses
from guardwrap.twists.progress_of import automaton_of

PIECES = (
    "a",
    "ab",
    "b",
    "c",
    " ",
    "\n",
    "- ",
    "1. ",
    "12-",
    "# ",
    '"',
    ". ",
    "! ",
    "? ",
    "A",
    "and",
    "ABC",
    "3,5",
    "*",
)
RARE = (
    "[",
    "]",
    "’",
    "-",
    "é",
    "ß",
    "Straße",
    "\u212a",
    "機",
    "カタ",
    "\u0301",
    "🙂",
    "🇩🇪",
    "\u200d",
    "\t",
    "_",
    "\x85",
    ",",
)
TEXTS = st.lists(st.sampled_from(PIECES) | st.sampled_from(RARE), max_size=10).map("".join) | st.text(max_size=8)

EXPRESSIONS: list[tuple[str, tuple[Any, ...]]] = [
    (",", ()),
    (r"\bcat?\b", ()),
    (r"(?i)straße|k", ()),
    ("^a$", ("multiline",)),
    ("a$", ()),
    ("a$\n?b?", ()),
    ("a\n$", ()),
    ("^$", ()),
    (r"\A(?:ab|a)(?:bc|c)?\Z", ()),
    (r"\d{2,3}-\d*", ()),
    (r"(?<!\w)a(?!b)|(?<=b)a(?=\n)", ()),
    ("a.b", ()),
    ("a.b", ("dotall",)),
    (r"\p{Lu}[\p{L}-]*a", ()),
    ("(a|b*)*c", ()),
    (r"\Ba\B|\B-", ()),
    ("a??b{0,2}?", ()),
    ("", ()),
    (r"[^\w\s]", ("ascii",)),
    (r" a  # comment", ("verbose", "ignorecase")),
    (r"(?:){9999}a", ()),
]
REGEXES = [Regex(source, flags=flags, match=how) for source, flags in EXPRESSIONS for how in ("search", "fullmatch")]
APPROXIMATE = ("palindromes", "statements", "questions", "exclamations")
COUNTS = [
    *(Count(item, min=1, max=3) for item in get_args(Item) if item not in APPROXIMATE),
    Count("bullets", min=3, max=3),
    Count("words", min=2, max=4, shortest=2),
    Count("pronouns", max=1, language="de"),
    Count(pattern="ab|a|b+c", min=2, max=4),
    Count(pattern="ABC?", ignore_case=True, min=2),
    Count(pattern=r"(?m)a$", max=1),
    Count(pattern=r"a{2}\b|b", max=1),
]
OTHERS = [
    OneOf(["a", "ab c"]),
    OneOf(["A", "straße"], ignore_case=True),
    Edges(start=["a", '"'], end=["b", '"']),
    Edges(start="AB", ignore_case=True),
    Case("upper"),
    Case("lower"),
    Case("title"),
    Split("*", min=2, max=2),
    Split("\n\n", min=2),
    Split("aab", min=2, max=2),
    ~Regex(","),
    Regex("a") & ~Regex("b") & Finished(),
]
EXACT = [*REGEXES, *COUNTS, *OTHERS]


@cache
def known(rule: Constraint) -> Automaton:
    automaton = automaton_of(rule)
    assert automaton is not None
    return automaton


def satisfied(automaton: Automaton, text: str, *, finished: bool = True) -> bool:
    return bool((automaton.ended if finished else automaton.cut)[automaton.read(text)])


@pytest.mark.slow
@pytest.mark.parametrize("rule", EXACT, ids=str)
@given(text=TEXTS, finished=st.booleans())
@example(text="a\nb", finished=True)  # a $ was passed that does not hold in the end
@example(text="c aaab c", finished=True)  # a separator begins within another one that fails
@settings(max_examples=100, deadline=None)
def test_automata_of_expressions_agree_with_constraints(rule: Constraint, text: str, finished: bool) -> None:
    automaton = known(rule)
    assert satisfied(automaton, text, finished=finished) == rule.check([Draw("", (), text, finished)])[0]


@pytest.mark.parametrize(
    "rule",
    [
        Length(min=2, max=3, unit="sentences"),
        Count("statements", min=1, max=1),
        Count("questions", max=1),
        Count("exclamations", min=1),
    ],
    ids=str,
)
def test_sentences_are_counted_by_the_most_frequent_rules(rule: Constraint) -> None:
    automaton = automaton_of(rule)
    assert automaton is not None
    chance = random.Random(1)
    words = ["Tea", "is", "good", "Mr. Hill", "I", "he said", "no"]
    ends = [".", ".", "!", "?", "...", ".\n", "\n\n", '."', '!"', ",", ""]
    texts = [
        " ".join(chance.choice(words) + chance.choice(ends) for _ in range(chance.randrange(6))) for _ in range(500)
    ]
    # Not all rules of ``sentences`` are followed: those on dates, numbers, dashes and most abbreviations are not.
    assert np.mean([satisfied(automaton, text) == rule.accepts(text) for text in texts]) > 0.97


@pytest.mark.parametrize(
    "rule",
    [
        Regex("(a)\\1"),
        Regex("(?<!ab)c"),
        Regex("(?>a|ab)c"),
        Regex("a++b"),
        Regex("(a)?(?(1)b|c)"),
        Regex(r"\d{12,19}", checksum="luhn"),
        Regex("[[a]"),
        Regex("a", on="lines"),
        Regex("(?:a|b){9999}c"),
        Regex("(a|b)*a(a|b){40}"),
        Count("words", unique=True, min=2),
        Count("words", each=True, max=2),
        Count("vowels", share_of="letters", max=0.4),
        Count("palindromes", max=1),
        Count("words", max=3, on="first_line"),
        Split("a", each=Regex("b")),
        Split("a", different=True),
        OneOf(["a"], on="last_line"),
    ],
    ids=str,
)
def test_constraints_that_no_automaton_follows(rule: Constraint) -> None:
    assert automaton_of(rule) is None


def test_exactly_three_bullets() -> None:
    automaton = automaton_of(Count("bullets", min=3, max=3))
    assert automaton is not None
    live = automaton.live()
    for number in range(6):
        text = "Here:\n" + "".join(f"- tea {each}\n" for each in range(number))
        assert satisfied(automaton, text) == (number == 3)
        assert live[automaton.read(text)] == (number <= 3)


def test_states_that_no_text_tells_apart_are_one() -> None:
    automaton = automaton_of(~Regex(","))
    assert automaton is not None
    assert (len(automaton), automaton.table.shape[1]) == (2, 2)
    chance = np.random.default_rng(1)
    for _ in range(20):
        table = chance.integers(0, 9, (9, 2)).astype(np.int32)
        before = Automaton(table, "ab".index, chance.random(9) < 0.3, chance.random(9) < 0.3)
        after = minimized(before)
        assert (
            len({(*row, end, cut) for row, end, cut in zip(after.table.tolist(), after.ended, after.cut, strict=True)})
            <= 9
        )
        for _ in range(50):
            text = "".join(chance.choice(["a", "b"], chance.integers(0, 12)))
            assert satisfied(before, text) == satisfied(after, text)
            assert satisfied(before, text, finished=False) == satisfied(after, text, finished=False)


def test_kinds_of_characters() -> None:
    classes = CharacterClasses(((r"\w", 0), ("[a-f]", 0), (r"\d", 0)))
    assert [classes.kind_of(char) for char in "az5 "] == [
        (True, True, False),
        (True, False, False),
        (True, False, True),
        (False, False, False),
    ]
    assert {classes.kind_of(example) for example in classes.kinds.values()} == set(classes.kinds)
    rare = CharacterClasses((("[\U00020000]", 0),))
    assert rare.kind_of("\U00020000") == (False,), "of no kind that occurs, so it is like others"
