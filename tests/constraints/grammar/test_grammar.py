"""Grammars: the language is that of Lark, verdicts are sound, and hostile input ends within the limits."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import llguidance
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.lark import from_lark
from lark import Lark
from lark.exceptions import LarkError

from guardwrap import Budget, Grammar, GuardedGenerator, Regex, Verdict
from guardwrap.constraints import All, base, catalogue, csv, dump, load, parse
from guardwrap.constraints.checking import run_verdict
from guardwrap.constraints.grammar import grammar as grammar_module
from guardwrap.constraints.grammar import llguidance_matcher
from guardwrap.constraints.verdicts import Monitor
from guardwrap.errors import CheckFailed, ConstraintError, SpecError, Unsatisfiable
from guardwrap.testing import World, check_constraint, goodness_of_fit, llama_world, table_world
from tests.constraints.fixtures_strategies import assert_sound, profile

V, U = Verdict.VIOLATED, Verdict.UNDECIDED

# name: (grammar, the characters of the random texts)
GRAMMARS = {
    "sums": ('start: N ("+" N)*\nN: /[ab]+/\n%ignore " "', "ab+ "),
    "brackets": ('start: ("(" start ")")*', "()"),
    "left": ('start: start "," X | X\nX: "a".."b"', "ab,"),
    "right": ('start: X ["," start]\nX: "a" | "bb"', "ab,"),
    "ambiguous": ('start: start start | "a" | "(" start ")"', "a()"),
    "strings": (r'start: S (":" S)?' + '\n' + r'S: /"([^"\\]|\\["n])*"/', '"\\n:'),
    "empty": ("start: x x\nx: [A] [B]\nA: /a/\nB: /b/", "ab"),
    "counted": ('start: "a"~2..3 "B"i', "abB"),
    "characters": ("start: (CAP REST)+\nCAP: /[É漢]/\nREST: /é|🙂/", "É漢é🙂"),
    "imported": ("start: INT [WS INT]\n%import common.INT\n%import common.WS -> _UNUSED\nWS: /[ ]+/", "12 x"),
    "ignored at the end": ('start: "a" "b"\n%ignore " "\n%ignore /#+/', "ab #"),
    "ignored by name": ('start: [A]\nA: "a"\n%ignore WS\nWS: /[ \\n]+/ | "x"i', "a \nX"),
    "commented": ('start: "a" // one\n  # two\n\n  | "b" # three\n%ignore /\\/\\*.*?\\*\\//s', "ab/*"),
    "lazy": ('start: S (":" S)?\nS: /".*?"/', '":a'),
    "lazy in a rule": ('start: /<(.|\\n)*?>/ "x"*', "<>x\n"),
    "lazy with a count": ("start: S\nS: /a{1,3}?b{2}[cd]/i", "abcB"),
    "lazy at the end": ("start: S\nS: /ab+?/", "ab"),
    "lazy and ignored": ('start: "a"\n%ignore C\nC: /[(].*?[)]/', "a()"),
    "flags": ("start: /a.(?i:b)/s /c/i", "ab\nBC"),
    "shaped": ('?start: _pair -> pair\n!_pair: "<" "a" ">" | "(" "a" ")"', "<a>()"),
}  # fmt: skip


def parser(grammar: str) -> Lark:
    return Lark(grammar, parser="earley", lexer="dynamic_complete")


def parses(grammar: Lark, text: str) -> bool:
    try:
        grammar.parse(text)
    except LarkError:
        return False
    return True


def texts(alphabet: str, longest: int = 5) -> list[str]:
    return ["".join(chars) for size in range(longest + 1) for chars in itertools.product(alphabet, repeat=size)]


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAMMARS)
def test_the_language_is_larks(name: str) -> None:
    grammar, alphabet = GRAMMARS[name]
    ours, theirs = Grammar(grammar), parser(grammar)
    judged = {text: ours.accepts(text) for text in texts(alphabet)}
    assert judged == {text: parses(theirs, text) for text in judged}
    assert 0 < sum(judged.values()) < len(judged)


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAMMARS)
def test_violated_exactly_where_no_sentence_begins_like_this(name: str) -> None:
    grammar, alphabet = GRAMMARS[name]
    ours, theirs = Grammar(grammar), parser(grammar)
    begun = {text[:end] for text in texts(alphabet) if parses(theirs, text) for end in range(len(text) + 1)}
    seen = set()
    for text in texts(alphabet, 4):
        verdict = ours.verdict(text)
        seen.add(verdict)
        if verdict is V:
            assert text not in begun, text
        else:  # some sentence begins with it, perhaps a longer one
            assert text in begun or any(parses(theirs, text + more) for more in texts(alphabet)), text
    assert seen == {U, V}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAMMARS)
def test_the_laws_hold(name: str) -> None:
    grammar, alphabet = GRAMMARS[name]
    rng = random.Random(0)
    longer = ["".join(rng.choices(alphabet, k=rng.randrange(5, 30))) for _ in range(30)]
    check_constraint(Grammar(grammar), [*texts(alphabet, 3), *longer, "\ud83d", "a\udc00", "🙂", "\0", "<|end|>"])


@pytest.mark.slow
@profile(30)
@given(data=st.data())
@pytest.mark.parametrize("name", GRAMMARS)
def test_sentences_and_what_is_near_them(name: str, data: st.DataObject) -> None:
    grammar, alphabet = GRAMMARS[name]
    ours, theirs = Grammar(grammar), parser(grammar)
    sentence = data.draw(from_lark(Lark(grammar, parser="earley")))
    reading = ours.monitor()
    for end in range(len(sentence) + 1):
        assert ours.verdict(sentence[:end]) is reading.verdict is U
        reading = reading.read(sentence[end : end + 1])
    assert ours.accepts(sentence)
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(sentence))] * 2)))
    mutated = sentence[:begin] + data.draw(st.text(alphabet, max_size=2)) + sentence[end:]
    assert ours.accepts(mutated) is parses(theirs, mutated)
    assert_sound(ours, mutated)


def test_terminals_take_as_much_as_they_can() -> None:
    grammar = "start: A B\nA: /a+/\nB: /ab/"
    assert not Grammar(grammar).accepts("aab")
    assert parses(parser(grammar), "aab")
    check_constraint(Grammar(grammar), texts("ab"))


# Negative controls: are unsound verdicts and monitors detected?


class Impatient(Grammar):
    """Reject a terminal that is incomplete."""

    monitor = base.Constraint.monitor

    def prefix_verdict(self, prefix: str) -> Verdict:
        try:
            list(Lark(str(self.grammar), parser="lalr").lex(prefix))
        except LarkError:
            return V
        return U


class Forgetful(Grammar):
    """Begin a new terminal at each piece of text."""

    def monitor(self) -> Monitor:
        class Reading(grammar_module._Reading):
            def read(self, text: str) -> grammar_module._Reading:
                matcher = self.recogniser.follow(self.matcher, " " + text) if self.matcher else None
                return Reading(self.grammar, self.text + text, self.recogniser, matcher)

        return Reading(**vars(super().monitor()))


def test_negative_control_a_partial_terminal_taken_for_an_error_is_caught() -> None:
    grammar, _ = GRAMMARS["strings"]
    check_constraint(Grammar(grammar), ['"nn"'])
    with pytest.raises(AssertionError, match="unsound"):
        check_constraint(Impatient(grammar), ['"nn"'])


def test_negative_control_a_monitor_that_forgets_a_terminal_is_caught() -> None:
    grammar = 'start: W\nW: "ab"\n%ignore " "'
    check_constraint(Grammar(grammar), ["ab"])
    with pytest.raises(AssertionError, match=r"the monitor's verdicts?(\(\))? on"):
        check_constraint(Forgetful(grammar), ["ab"])


# Limits of the library


# The automaton has 2^25 states, so a few texts use up the lexer that all texts share.
WIDE = "(a|b)*a(a|b){24}"


def wide_texts(count: int) -> list[str]:
    rng = random.Random(1)
    return ["".join(rng.choices("ab", k=400)) for _ in range(count)]


def test_a_lexer_that_is_used_up_changes_no_judgement() -> None:
    grammar, plain = Grammar(f"start: /{WIDE}/"), Regex(WIDE, match="fullmatch")
    first, reading = grammar.recogniser, grammar.monitor().read("a")
    for text in wide_texts(150):
        assert grammar.accepts(text) is plain.accepts(text)
        assert grammar.verdict(text) is U
    assert not first.alive
    assert grammar.recogniser is not first
    # A reading that began earlier continues.
    assert reading.verdicts(["ab", "c"]) == [U, V]
    assert reading.read("ab").verdict is U
    assert reading.read("c").verdict is V


def test_negative_control_a_lexer_that_is_not_asked_misjudges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llguidance_matcher.Matcher, "alive", True)
    grammar = Grammar(f"start: /{WIDE}/")
    verdicts = set()
    for text in wide_texts(150):
        verdicts.add(run_verdict(grammar, text))
    assert verdicts == {U, V}


def test_a_text_that_is_too_ambiguous_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = partial(llguidance.LLParserLimits, max_items_in_row=50)
    monkeypatch.setattr(llguidance_matcher, "LLParserLimits", limits)
    grammar = Grammar('start: "a" start | "a"', name="many")
    assert grammar.accepts("a" * 40)
    with pytest.raises(CheckFailed, match="'many' is too ambiguous for one text of 100 characters"):
        grammar.accepts("a" * 100)
    assert grammar.verdict("a" * 100) is U
    lost = grammar.monitor().read("a" * 100)
    assert lost.verdict is lost.read("b").verdict is U
    assert lost.verdicts(["a", "b"]) == [U, U]
    assert grammar.accepts("a" * 40)
    assert grammar.verdict("b") is V


@pytest.mark.slow
def test_a_text_that_takes_too_long_is_not_judged() -> None:
    grammar = Grammar("start: start start start | start start | X\nX: /a/")
    with pytest.raises(CheckFailed, match="the 2 s that all parts together may spend on one text of 2000"):
        grammar.accepts("a" * 2000)
    assert grammar.verdict("a" * 2000) is U
    reading = grammar.monitor().read("a" * 2000)
    assert reading.verdict is reading.read("b").verdict is U


def chain(count: int, body: str, name: str = "r") -> str:
    rules = [f"{name}{i}: {body.replace('@', f'{name}{i + 1}')}" for i in range(count)]
    return "\n".join([f"start: {name}0", *rules, f'{name}{count}: "a"'])


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        (chain(598, "@"), None),  # beyond a few thousand, the stack overflows and kills the process
        (chain(400, '@ "b"?', "T"), None),
        (chain(598, '@ "b"?', "T"), "too big"),
        (chain(600, "@"), "602 colons and brackets; at most 600"),
        (f"start: {'(' * 500}", "line 1: .*too deeply nested"),
        (f"start: /{'(' * 400}a{')' * 400}/", "line 1: invalid regex"),
        (f"start: /{'a?' * 601}/", "601 repetitions .*; at most 600"),
        (f"start: /{'a?' * 600}/", None),
        (f"start: /{'a{0,9}' * 500}/", None),
        (f'start: "{"a" * 20_000}"', "20009 characters; at most 20000"),
        (f"start: {'x ' * 9000}\nx: A?\nA: /a/", None),
        ("\n".join(["start: T0", *(f"T{i}: T{i + 1} T{i + 1}" for i in range(40)), "T40: /a/"]), "too big"),
        ("start: /(((a{1,999}){1,999}){1,999}){1,999}/", None),
    ],
)
def test_hostile_grammars_are_refused_or_read(grammar: str, problem: str | None) -> None:
    if problem:
        with pytest.raises(ConstraintError, match=problem) as error:
            Grammar(grammar)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 400
        return
    constraint = Grammar(grammar)
    for text in ("a", "b", "a" * 300):
        assert constraint.verdict(text) in (U, V)


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ('start: "a"\n\nfoo: "a"\nstart: foo', 'line 4: duplicate rule: "start"'),
        ('start: "a" bar\nbar: foo', 'line 2: unknown name: "foo"'),
        ('start: "a" "', "line 1: neither a rule nor a terminal"),
        ('start: ("a"', r"line 1: Expected token '\)'"),
        ("\nstart: /(/", r'line 2: invalid regex "\(" \(unclosed group\)'),
        ("start: /a(?=b)/", r"line 1: look-around \(\(\?=…\) is not supported"),
        ("start: A\nA: /(?<!a)b/", r"line 2: look-around \(\(\?<!…\) is not supported"),
        ("start: A B\nA: /a$/\nB: /^b/", r"line 2: the anchor '\$' is not supported"),
        ("start: A\nA: /^a/", r"line 2: the anchor '\^' is not supported"),
        (r"start: /(a|(?:b\b))/", r"line 1: the anchor '\\\\b' is not supported"),
        (r"start: /a\Z/", r"line 1: the anchor '\\\\Z' is not supported"),
        (r"start: /(a)\1/", r"line 1: the backreference '\\\\1' is not supported"),
        ("start: /(?P<x>a)(?P=x)/", "line 1: a backreference .* is not supported"),
        ("start: /(?>a)b/", "line 1: an atomic group .* is not supported"),
        ("start: /a++b/", r"line 1: the possessive quantifier '\+\+' is not supported"),
        ("start: /a{1,2}+/", "line 1: the possessive quantifier .* is not supported"),
        ("start: /[a&&b]/", r"line 1: '&&' within \[\] is not supported"),
        ("start: /[^[a]]/", r"line 1: '\[' within \[\] is not supported"),
        ('start: S\nS: "a" /.*?/ "b"', "line 2: a lazy quantifier is supported only"),
        ("start: S\nS: T T\nT: /a.*?b/", "line 2: a lazy quantifier is supported only"),
        ("start: /(ab|a)*?b/", "line 1: a lazy quantifier is supported only"),
        ("start: /a.*?(bcd|c)/", "line 1: a lazy quantifier is supported only"),
        ("start: /a+.*?b/", "line 1: a lazy quantifier is supported only"),
        ("start: /a.*?b.*?c/", "line 1: a lazy quantifier is supported only"),
        ('start: S\nS: /a.*?b/ | "b"', "line 2: a lazy quantifier is supported only"),
        ("start: /a.*?b|ab*/", "line 1: a lazy quantifier is supported only"),
        ("start: /(a.*?b)+/", "line 1: a lazy quantifier is supported only"),
        ("start: /a .*? b/x", "line 1: a lazy quantifier is supported only"),
        ("start: /a b # ^\n $/x", r"line 1: the anchor '\$' is not supported"),
        ("start: s{A}\ns{x}: x\nA: /a/", "templates are not supported|'{' is not supported"),
        ("start: A\nA: B\nB: A", 'line 3: circular reference in token "A"'),
        ("start: A\nA.2: /a/", "line 2: priority not supported"),
        ("start: INT\n%import common.NOPE", "line 2: Unknown common regex: common.NOPE"),
        ("start: INT\n%import .other.INT", "line 2: '.other.INT' cannot be imported, only common.NAME"),
        ("start: INT\n%import python.NAME", "line 2: 'python.NAME' cannot be imported, only common.NAME"),
        ("start: INT\n%import .other (INT)", "line 2: '.other' cannot be imported, only common.NAME"),
        ('%declare A\nstart: "a"', "line 1: '%declare' is not supported"),
        ('%extend start: "a"', "line 1: '%extend' is not supported"),
        # Syntax of the library that Lark lacks: for tokens of a model, or without a limit on its cost.
        ("// here\nstart: <|end|>", "line 2: '<' is not supported"),
        ("start: <[12]>", "line 1: '<' is not supported"),
        ("start: x\nx[max_tokens=3]: /a*/", r"line 2: 'x\[' is not supported"),
        ("start: x\nx [lazy]: /a*/", r"line 2: 'x \[' is not supported"),
        ("start: %json {}", "line 1: '%json' is not supported"),
        ("start: A\nA: /a/ & /b/", "line 2: '&' is not supported"),
        ("start: A\nA: ~/a/", "line 2: '~' is not supported"),
        ("start: @other", "line 1: '@' is not supported"),
        ('%llguidance {}\nstart: "a"', "line 1: '%llguidance' is not supported"),
        ('strat: "a"', r"no rule 'start' \(did you mean 'strat'\?\)"),
        ("", "no rule 'start'; define it, or set start="),
    ],
)
def test_errors_are_one_line_that_names_the_line(grammar: str, problem: str) -> None:
    with pytest.raises(ConstraintError, match=problem) as error:
        Grammar(grammar)
    assert "\n" not in str(error.value)


def test_quotes_and_comments_hide_what_would_not_be_supported() -> None:
    grammar = Grammar('start: "<" "&" "%json" /[~@&<"]/ // <foo> & @x\n  | "a" "//" # ~\n  | /b\\/\n<&c/')
    assert [grammar.accepts(text) for text in ('<&%json"', "a//", "b/\n<&c", "a")] == [True, True, True, False]


PATTERNS = st.builds(
    "".join,
    st.tuples(
        st.lists(st.sampled_from(["a", "[ab]", "b{2}", "(?:a|c)", "a+", "(a|bc)"]), max_size=2).map("".join),
        st.sampled_from(["a", ".", "[^b]", "(a|b)", "(ab|a)"]),
        st.sampled_from(["*?", "+?", "??", "{1,2}?", "{1,}?"]),
        st.lists(st.sampled_from(["b", "c", "[bc]", "(a|b)", "b{2}", "c?"]), max_size=3).map("".join),
    ),
)


@pytest.mark.slow
@given(pattern=PATTERNS)
@profile(300)
def test_a_lazy_terminal_ends_where_a_match_ends_or_is_refused(pattern: str) -> None:
    try:
        ours = Grammar(f"start: /{pattern}/")
    except ConstraintError:
        return
    for text in texts("abc"):
        match = re.match(pattern, text)
        assert ours.accepts(text) is (match is not None and match.end() == len(text)), text


def test_negative_control_a_quantifier_that_is_not_lazy_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Grammar("start: /a.*?b/").verdict("abb") is V
    monkeypatch.setattr(llguidance_matcher, "first_end", lambda pattern, flags: None)
    assert Grammar("start: /a.*?b/").accepts("abb")


@pytest.mark.parametrize("grammar", ["start: x\nx: start", 'start: start "a"'])
def test_a_language_without_texts_is_refused(grammar: str) -> None:
    with pytest.raises(Unsatisfiable, match="the rule 'start' matches no text"):
        Grammar(grammar)


def test_a_language_of_the_empty_text() -> None:
    check_constraint(Grammar("start:"), ["", "a"])
    assert Grammar("start:").accepts("")
    assert Grammar("start:").verdict("a") is V


# Canonical forms


def test_another_rule_may_be_the_start() -> None:
    grammar = 'a: "x" b\nb: "y"\n'
    assert Grammar(grammar, start="b").accepts("y")
    assert not Grammar(grammar, start="a").accepts("y")
    with pytest.raises(ConstraintError, match="no rule 'c'"):
        Grammar(grammar, start="c")
    with pytest.raises(ConstraintError, match="a rule 'start' besides start='a'"):
        Grammar(f'{grammar}start: "z"', start="a")


def test_copies_judge_alike() -> None:
    grammar = Grammar('start: "a"+', name="many")
    grammar.accepts("aa")
    for other in (pickle.loads(pickle.dumps(grammar)), copy.deepcopy(grammar), parse(dump(grammar)).constraint):
        assert other == grammar
        assert other.digest == grammar.digest
        assert isinstance(other, Grammar)
        assert other.name == "many"
        assert [other.accepts(text) for text in ("aa", "ab")] == [True, False]


def test_a_constraint_file_may_name_a_file_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grammars").mkdir()
    (tmp_path / "grammars" / "many.lark").write_text('start: "a"+\n')
    part = "{kind: grammar, file: grammars/many.lark}"
    (tmp_path / "rules.yaml").write_text(
        f"guardwrap: 1\nconstraint: {{kind: all, of: [{part}, {{kind: length, max: 3}}]}}"
    )
    found = load(tmp_path / "rules.yaml").constraint
    assert isinstance(found, All)
    assert found.of[0].digest == Grammar('start: "a"+\n').digest
    assert [found.accepts(text) for text in ("aaa", "aaaa")] == [True, False]
    assert parse(dump(found)).constraint == found, "what is written holds the grammar itself"
    monkeypatch.chdir(tmp_path)
    assert Grammar(file="grammars/many.lark") == found.of[0]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("file: none.lark", r"rules.yaml:2: constraint: cannot read '.*none.lark': No such file"),
        ("file: folder", r"rules.yaml:2: constraint: cannot read '.*folder': Is a directory"),
        ('grammar: "start: a"', r"rules.yaml:4: constraint.grammar: line 1: unknown name"),
        ("on: completion", "rules.yaml:2: constraint: Grammar needs either a grammar or a file that holds one"),
        (
            "file: a.lark\n  grammar: 'start:'",
            "rules.yaml:2: constraint: Grammar needs either a grammar",
        ),
        ("grammer: 'start:'", "unknown field 'grammer' \\(did you mean 'grammar'\\?\\)"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(fields: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "rules.yaml").write_text(f"guardwrap: 1\nconstraint:\n  kind: grammar\n  {fields}\n")
    with pytest.raises(SpecError, match=problem):
        load(tmp_path / "rules.yaml")


def test_views() -> None:
    lines = Grammar('start: "a"+ ","', on="lines")
    check_constraint(lines, ["a,\naa,", "a,\na", "b", "a,\nb\na,"])
    assert lines.accepts("a,\naa,")
    assert lines.verdict("a,\nb\n") is V


def test_csv_has_as_many_columns_as_said() -> None:
    rows = {n: "\n".join([",".join(["x"] * n)] * 2) for n in (1, 2, 3, 40)}
    for columns in rows:
        assert [n for n, text in rows.items() if csv(columns).accepts(text)] == [columns]
    three = catalogue("csv-3-columns")
    assert [csv(3).accepts(text) for text in (*three.accepts, *three.rejects)] == [
        *[True] * len(three.accepts),
        *[False] * len(three.rejects),
    ]
    wrong: list[Any] = [0, -1, 2.0, True, 10_001]
    for given_columns in wrong:
        with pytest.raises(ConstraintError, match="columns must be a whole number"):
            csv(given_columns)


# Exactness


def fit(grammar: Grammar, world: World, draws: int) -> float:
    guarded = GuardedGenerator(world.pipeline(), grammar, batch_size=64, seed=1, budget=Budget(max_attempts=None))
    (outcome,) = guarded.run(world.prompt, num_return_sequences=draws, **world.settings)
    return goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(grammar))


WORDS = 'start: W (" " W)*\nW: /[ab]+/'


@pytest.mark.slow
@pytest.mark.parametrize("make", [table_world, llama_world])
def test_drawn_from_g(make: Callable[..., World]) -> None:
    world = make(letters="ab ", max_new_tokens=4)
    assert 10 < len(world.gold(Grammar(WORDS))) < len(world.law()) / 2
    assert fit(Grammar(WORDS), world, 20_000) > 1e-3


@pytest.mark.slow
def test_negative_control_an_unsound_verdict_is_biased() -> None:
    class Hasty(Grammar):
        monitor = base.Constraint.monitor

        def prefix_verdict(self, prefix: str) -> Verdict:
            return V if prefix.endswith(" ") else super().prefix_verdict(prefix)

    world = table_world(letters="ab ", max_new_tokens=4)
    assert fit(Hasty(WORDS), world, 5_000) < 1e-9
