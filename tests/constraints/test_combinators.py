"""Combinators: Kleene logic, equality, and which parts judge which draws."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from typing import Any

import pytest
from hypothesis import given

from guardwrap.constraints import All, AnyOf, Constraint, Finished, JSONSchema, Keyword, Length, Not, Regex, Verdict
from guardwrap.constraints.checking import judge, run_check
from guardwrap.constraints.kinds.text import Flag
from guardwrap.errors import CheckFailed, ConstraintError, GuardwrapError, Unsatisfiable
from guardwrap.outcomes import Draw
from tests.constraints.fixtures_strategies import lengths, nameable_trees, profile, texts, trees


def conjunction(a, b):
    try:
        return a & b
    except Unsatisfiable:
        return None


def outcome(constraint, text):
    """Return the judgement and the verdict, or None if the checker gives up."""
    draw = Draw(prompt="", token_ids=tuple(range(len(text))), text=text)
    try:
        return run_check(constraint, [draw])[0], constraint.verdict(text)
    except CheckFailed:
        return None


@pytest.mark.slow
@profile(250)
@given(trees, trees, texts)
def test_kleene_laws(a, b, text):
    x, y = outcome(a, text), outcome(b, text)
    both, either = conjunction(a, b), a | b
    if x is None or y is None:
        return
    assert outcome(~a, text) == (not x[0], -x[1])
    assert outcome(~~a, text) == x
    assert outcome(either, text) == (x[0] or y[0], max(x[1], y[1]))
    if both is not None:
        assert outcome(both, text) == (x[0] and y[0], min(x[1], y[1]))
        assert outcome(~both, text) == outcome(~a | ~b, text)
    other = conjunction(~a, ~b)
    if other is not None:
        assert outcome(~either, text) == outcome(other, text)


@profile(150)
@given(nameable_trees)
def test_immutable_and_without_a_truth_value(constraint):
    with pytest.raises(TypeError, match="no truth value"):
        bool(constraint)
    with pytest.raises(TypeError):
        _ = constraint and constraint
    for field in dataclasses.fields(constraint):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(constraint, field.name, None)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(constraint, field.name)


def test_lists_given_by_the_caller_are_copied():
    words, schema = ["a"], {"type": "object"}
    flags: list[Flag] = ["multiline"]
    parts: list[Constraint] = [Length(max=1)]
    made = [Keyword(words), Regex("a", flags=flags), All(parts), JSONSchema(schema)]
    before = [repr(constraint) for constraint in made]
    words.append("b")
    flags.append("dotall")
    parts.append(Finished())
    schema.update(type="array")
    assert [repr(constraint) for constraint in made] == before


@profile(200)
@given(nameable_trees, nameable_trees)
def test_equal_means_same_digest(a, b):
    assert (a == b) is (a.digest == b.digest)
    assert len({a, b}) == len({a.digest, b.digest})
    assert a != "a"
    assert a != None  # noqa: E711


def test_only_constraints_combine():
    others: tuple[Any, ...] = ("a", None, True)
    for other in others:
        for combine in (operator.and_, operator.or_):
            for pair in ((Finished(), other), (other, Finished())):
                with pytest.raises(ConstraintError, match=r"combines constraints, and .* is not one"):
                    combine(*pair)
    wrong: tuple[Any, ...] = ([], (), Finished(), [Finished(), "a"], None, 5, "ab")
    for composite in (All, AnyOf):
        for parts in wrong:
            with pytest.raises(ConstraintError):
                composite(parts)
        once: Any = (part for part in (Finished(), Length(max=1)))
        assert len(composite(once).of) == 2
    with pytest.raises(ConstraintError):
        Not([Finished()])  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Counted(Constraint):
    """Records the texts that it judges."""

    answer: str
    price: int = 0
    seen: list[Any] = dataclasses.field(default_factory=list)
    kind: str = "counted"

    @property
    def cost(self):  # type: ignore[override]
        return self.price

    @property
    def title(self):
        return f"has {self.answer!r}"

    def check(self, draws):
        self.seen.append([draw.text for draw in draws])
        return [self.answer in draw.text for draw in draws]

    def verdict(self, prefix):
        self.seen.append(prefix)
        return Verdict.SATISFIED if self.answer in prefix else Verdict.UNDECIDED


def draws(*texts):
    return [Draw(prompt="", token_ids=(), text=text) for text in texts]


def test_all_hands_only_survivors_to_costly_parts():
    dear, cheap = Counted("a", price=2), Counted("b", price=0)
    assert All([dear, cheap]).check(draws("a", "ab", "b", "")) == [False, True, False, False]
    assert cheap.seen == [["a", "ab", "b", ""]]
    assert dear.seen == [["ab", "b"]]


def test_all_does_not_ask_costly_parts_when_nothing_survives():
    dear, cheap = Counted("a", price=2), Counted("b", price=0)
    assert (dear & cheap).check(draws("a", "c")) == [False, False]
    assert dear.seen == []


def test_any_hands_only_failures_to_costly_parts():
    dear, cheap = Counted("a", price=2), Counted("b", price=0)
    assert (dear | cheap).check(draws("a", "ab", "b", "")) == [True, True, True, False]
    assert cheap.seen == [["a", "ab", "b", ""]]
    assert dear.seen == [["a", ""]]


def test_nested_costs():
    dear, cheap = Counted("a", price=2), Counted("b", price=0)
    for wrapped in (Not(dear), AnyOf([dear, Counted("c")]), All([dear], name="x")):
        assert wrapped.cost == 2
        All([wrapped, cheap]).check(draws("c"))
        assert dear.seen == []


def test_report_blames_the_first_part_that_rejects():
    short, word = Length(max=3, name="short"), Keyword("b")
    found = judge(All([Counted("a", price=2), word, short]), draws("b", "bbbb", "b a", "long b", "c"))
    assert [(j.satisfied, j.blame) for j in found] == [
        (False, "has 'a'"),
        (False, "Keyword(words=['b'])"),
        (True, None),
        (False, "short"),
        (False, "Keyword(words=['b'])"),
    ]


def test_named_parts_are_blamed_as_a_whole():
    inner = All([Length(max=3), Keyword("a")], name="short with a")
    assert [j.blame for j in judge(inner & Finished(), draws("long text"))] == ["short with a"]
    assert [j.blame for j in judge(~Keyword("a"), draws("a"))] == ["~Keyword(words=['a'])"]
    assert [j.blame for j in judge(Not(Keyword("a"), name="no a"), draws("a"))] == ["no a"]


@pytest.mark.parametrize(
    "parts",
    [
        lambda: Finished() & ~Finished(),
        lambda: ~Keyword("a") & Keyword("a", name="named"),
        lambda: All([Length(max=3), Finished(), ~Length(max=3)]),
        lambda: Keyword(["a", "b"], match="all") & Keyword("B", match="none"),
        lambda: Keyword("ban", match="none") & Keyword("Ban"),
        lambda: Keyword("Straße", match="none") & Keyword("STRASSE"),
        lambda: Keyword("mix") & Keyword("Mix".replace("I", "i"), match="none"),
        lambda: Length(min=5) & Length(max=4),
        lambda: Length(max=1, unit="words") & Length(min=2, unit="words"),
        lambda: Length(min=2, max=1),
        lambda: Keyword("a", min_count=2, max_count=1),
    ],
)
def test_visible_contradictions(parts):
    with pytest.raises(Unsatisfiable) as caught:
        parts()
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ((Keyword("ß", case_sensitive=True), Keyword("ss", match="none", case_sensitive=True)), "ß"),
        ((Keyword("I"), Keyword("i", match="none")), "ı"),
        ((Keyword(["a", "b"]), Keyword("a", match="none")), "b"),
        ((Keyword("a", whole_words=False), Keyword("a", match="none")), "xax"),
        ((Keyword("A", case_sensitive=True), Keyword("a", match="none", case_sensitive=True)), "A"),
        ((Keyword("a", min_count=0), Keyword("a", match="none")), "b"),
        ((Keyword("a", on="first_sentence"), Keyword("a", match="none", on="last_sentence")), "a. b."),
        ((Length(min=5), Length(max=4, unit="words")), "abcde"),
        ((Length(min=5), Length(max=5)), "abcde"),
    ],
)
def test_what_is_satisfiable_is_not_refused(parts, text):
    assert All(parts).accepts(text)


@profile(300)
@given(lengths(), lengths(), texts)
def test_contradictions_are_real(a, b, text):
    try:
        a & b
    except Unsatisfiable:
        with contextlib.suppress(CheckFailed):  # counts tokens
            assert not (a.accepts(text) and b.accepts(text))


class Undescribed(Constraint):
    """Is not a dataclass, and does not override ``spec``."""

    def check(self, draws):
        return [True for _ in draws]


def test_a_constraint_without_spelling_says_so():
    assert Undescribed().accepts("a")
    with pytest.raises(GuardwrapError, match="has no canonical form"):
        _ = Undescribed().digest


def test_verdicts_of_the_default_are_undecided():
    assert Undescribed().verdict("a") is Verdict.UNDECIDED
    assert Finished().verdict("a") is Verdict.UNDECIDED
    assert [Finished().check([Draw("", (), "a", finished=f)]) for f in (True, False)] == [[True], [False]]


def test_parts_that_differ_have_titles_that_differ():
    """Negative control: equal parts have one title."""
    long = [Regex("a" * 70 + letter) for letter in "bc"]
    assert long[0].title == long[1].title
    both = long[0] & long[1] & Keyword("x", name="one") & Keyword("y", name="one") & Keyword("x", name="one")
    assert [part.title for part in both.parts] == [
        long[0].title,
        f"{long[0].title} (2)",
        "one",
        "one (2)",
        "one",
    ]
    assert both.digest == All([*long, Keyword("x"), Keyword("y"), Keyword("x")]).digest
    (judgement,) = judge(both, [Draw("", (), "a" * 70 + "b x")])
    assert judgement.blame == f"{long[0].title} (2)"
