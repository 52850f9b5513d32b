"""Symbols of a page are explained in a legend, and at their first use in a table."""

import pytest

from guardwrap.outcomes import exactly
from guardwrap.outcomes.blocks import Note, Page, SampleText, Section, Table, Text, Texts
from guardwrap.outcomes.html import TERMS, first_uses, html_report, used_in
from tests.cli.fixtures_commands import run
from tests.outcomes.fixtures_pages import Page as Read
from tests.outcomes.fixtures_pages import results


def names(text):
    return [term.name for term in used_in(text)]


def html_of(*given):
    return html_report([Page("A page", (Section("A section", given),))])


def of_class(html, kind):
    """Return the attributes of all elements of a name."""
    return [attributes for tag, attributes in Read(html).seen if tag == kind]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("KL(g‖a') [nats]", ["g", "a'", "KL", "nats"]),
        ("KL(g‖g') [nats]", ["g", "g'", "KL", "nats"]),
        ("KL(g‖a) = -log AR of the model [nats]", ["a", "g", "AR", "KL", "nats"]),
        ("TVD(g, g')", ["g", "g'", "TVD"]),
        ("log Z - log AR_a' of g", ["g", "AR", "Z"]),
        ("log Z - log AR_a'", ["AR"]),
        ("effective sample size [attempts]", ["ESS"]),
        ("Pareto k of the weights", ["Pareto k"]),
        ("QRS, β = 0.3", ["QRS", "β"]),
        ("IMH, 3 steps", ["IMH"]),
        ("projected KL to g [nats]", ["KL", "projected KL", "nats"]),
        ("weight [g]", []),  # grams
        ("z, ARE, skl, TVDs, QRSTU, a', natural", []),
        ("", []),
    ],
)
def test_terms_that_a_text_uses(text, found):
    assert names(text) == found


def test_each_term_is_explained_by_its_own_pattern():
    for term in TERMS:
        assert term.name in names(f"KL(g‖g') [{term.name}] KL(g‖{term.name})"), term.name


def test_the_first_uses_only():
    left = {term.name: term for term in used_in("KL(g‖a') KL(g‖g')")}
    first = first_uses("KL(g‖a') and KL", left)
    assert "".join(piece for piece, _ in first) == "KL(g‖a') and KL"
    assert [(piece, term.name) for piece, term in first if term] == [("KL", "KL"), ("g", "g"), ("a'", "a'")]
    assert [(piece, term.name) for piece, term in first_uses("KL(g‖g')", left) if term] == [("g'", "g'")]
    assert first_uses("KL(g‖g')", left) == [("KL(g‖g')", None)]
    assert first_uses("", left) == []


def test_a_page_explains_what_it_uses_and_nothing_else():
    table = Table("c", ("method", "AR", "KL(g‖g') [nats]"), (("QRS", exactly(1), None), ("AR", None, None)))
    html = html_of(table)
    page = Read(html)
    assert [attributes["title"] for tag, attributes in page.seen if tag == "abbr"] == [
        next(term.meaning for term in TERMS if term.name == name) for name in ("AR", "KL", "g", "g'", "nats", "QRS")
    ]
    text = "".join(page.text)
    for name in ("AR", "KL", "g", "g'", "nats", "QRS"):
        assert f"{name}{next(term.meaning for term in TERMS if term.name == name)}" in text
    assert "Hastings" not in text, "IMH is not on this page"
    assert len(of_class(html, "dt")) == 6


def test_words_of_texts_and_prompts_are_no_terms():
    said = "KL(g‖g') TVD AR QRS"
    assert "<abbr" not in html_of(Text(said), Texts("Samples", (SampleText(said),)))
    assert "Words and symbols" not in html_of(Text(said), Texts("Samples", (SampleText(said),)))
    assert "Words and symbols" in html_of(Note(said)), "a negative control"


@pytest.mark.slow
def test_the_pages_of_results_explain_their_symbols(tmp_path):
    results(tmp_path)
    assert run("report", tmp_path).exit_code == 0
    html = (tmp_path / "report.html").read_text()
    page = Read(html)
    told = [attributes["title"] for tag, attributes in page.seen if tag == "abbr"]
    assert len(told) == len(set(told)), "once each"
    meanings = {term.name: term.meaning for term in TERMS}
    assert {meanings[name] for name in ("AR", "TVD", "KL", "ESS", "a", "g", "g'", "a'")} <= set(told)
    assert len(of_class(html, "details")) > 1
    legend = html[html.index('class="legend"') : html.index("</details>", html.index('class="legend"'))]
    assert all(f"<dt>{name}</dt>" in legend for name in ("AR", "TVD", "KL", "ESS", "a", "g"))
