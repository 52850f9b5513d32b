"""XML, compared with ElementTree, and HTML."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Parses
from guardwrap.constraints import Verdict
from guardwrap.constraints.checking import run_verdict
from guardwrap.outcomes import Draw
from guardwrap.rules import formats
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import assert_sound, judged, profile

XML = Parses("xml")
VALID = [
    "<a/>",
    "<a b='1'>&amp;&#233;<![CDATA[<]]></a>\n",
    "<?xml version='1.0' encoding='latin-1'?>\n<!-- c --><a>é</a><?p q?>",
    "<!DOCTYPE a><a/>",
    "<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>",
    "<x:a xmlns:x='u'><x:b/></x:a>",
    "\n<a>\r\n</a>",
]
INVALID = [
    *("", "text", "<a>", "<a></b>", "<a/><b/>", "<a b=1/>", "<a b='1' b='2'/>", "<a>&b;</a>", "<a>&</a>", "<x:a/>"),
    *("<a>\0</a>", "<a>\ud800</a>", "<a>]]></a>", " <?xml version='1.0'?><a/>"),
    "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
    "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
]
LAUGHS = "".join(f"<!ENTITY a{i} '{f'&a{i - 1};' * 10}'>" for i in range(1, 30))
LAUGHS = f"<!DOCTYPE a [<!ENTITY a0 'ha'>{LAUGHS}]><a>&a29;</a>"
PIECES = [
    *(
        "<a>",
        "</a>",
        "<a",
        ">",
        "/>",
        "<",
        "&",
        "amp;",
        "&#",
        "65;",
        "x41;",
        "<!--",
        "--",
        "-->",
        "<![CDATA[",
        "]]",
        "]]>",
    ),
    *("<?", "?>", "<?xml version='1.0'", " encoding='x'", "<!DOCTYPE a", " [", "<!ENTITY b 'c'>", "]", " b=", "'", '"'),
    *(" xmlns:x='u'", "x:", "é", "\ufeff", "\0", "\x01", "\ud800", "\ufffe", "\n", "\r", " ", "text", "SYSTEM 'u'"),
]


@pytest.mark.parametrize("text", VALID)
def test_documents_are_accepted(text):
    assert XML.accepts(text)


@pytest.mark.parametrize("text", [*INVALID, LAUGHS])
def test_other_texts_are_rejected(text):
    assert not XML.accepts(text)
    assert XML.fault(text)


def test_verdicts_are_sound():
    check_constraint(XML, VALID + INVALID)


@profile(400)
@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
def test_verdicts_are_sound_on_fragments(text):
    assert_sound(XML, text)


@profile(300)
@given(st.lists(st.sampled_from(PIECES), max_size=8).map(lambda pieces: f"<a>{''.join(pieces)}</a>"))
def test_xml_agrees_with_elementtree(text):
    try:
        ElementTree.fromstring(text)
        holds = True
    except (ElementTree.ParseError, ValueError):  # ValueError: half of a surrogate pair
        holds = False
    assert XML.accepts(text) is holds


@pytest.mark.parametrize("prefix", ["x<", "<a></b>", "<a/><b ", "<a b=1", "<!DOCTYPE a ["])
def test_prefixes_that_cannot_be_mended_are_violated(prefix):
    assert run_verdict(XML, prefix) is Verdict.VIOLATED


def test_negative_control_a_prefix_is_judged_as_a_document(monkeypatch):
    faults = formats._fault_of_xml
    monkeypatch.setattr(formats, "_fault_of_xml", lambda text, complete: faults(text, complete=True))
    with pytest.raises(AssertionError, match="unsound"):
        check_constraint(XML, ["<a/>"])


def test_negative_control_entities_would_be_declared(monkeypatch):
    monkeypatch.setattr(formats, "_refuse_declarations", lambda *names: None)
    assert XML.accepts("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>")


@pytest.mark.parametrize(
    "text",
    [
        "<a>" * 9_000,
        "<a>" * 4_000 + "</a>" * 4_000,
        "<a " + " ".join(f"b{i}='1'" for i in range(3_000)) + "/>",
        "<a b='" + "&#65;" * 5_000 + "'/>",
        "<!--" + "-" * 29_000,
        "<a " + "x" * 29_000,
        "<?" * 14_000,
        "<" * 29_000,
        "<![CDATA[" * 3_000,
    ],
)
def test_hostile_xml_is_judged(text):
    assert judged(XML, Draw("", (), text)) in (True, False, None)
    assert run_verdict(XML, text) in Verdict


# ------------------------------------------------------------------------------------------------------------- HTML


@pytest.fixture
def html():
    pytest.importorskip("tinyhtml5")
    return Parses("html")


DOCUMENT = "<!doctype html>\n<html><head><title>x</title></head><body><p>a<br><img src=b alt=''></body></html>"
HTML = [DOCUMENT, "<p>a", "<ul><li>a<li>b</ul>", "<a href='?a=1&b=2'>x</a>", "<my-tag></my-tag>", "plain text"]
NO_HTML = [
    *("", " ", "<b>a", "<div>", "</p></div>", "<p class=a class=b>", "<div/>", "<b><i></b></i>", "<table><p>x</table>"),
    *("<!doctype html><title>x</title></b>", "<html><body></body></html>", "<!-- a", "\0", "<script>", "\ud800", "<p"),
]


def test_html_without_parse_errors_is_accepted(html):
    assert [text for text in HTML if not html.accepts(text)] == []
    assert [text for text in NO_HTML if html.accepts(text) or not html.fault(text)] == []
    check_constraint(html, HTML + NO_HTML)


def test_a_text_that_is_a_path_is_not_opened(html, tmp_path, monkeypatch):
    (tmp_path / "broken.html").write_text("</div>")
    monkeypatch.chdir(tmp_path)
    assert html.accepts("broken.html")  # as text; the file has an error
    monkeypatch.setattr("io.StringIO", lambda text, newline: text)
    assert not html.accepts("broken.html")  # negative control: the library opens it


def test_elements_that_are_open_at_once_are_limited(html):
    assert html.accepts("<div>" * 400 + "</div>" * 400)
    assert html.fault("<div>" * 1_600 + "</div>" * 1_600) == "has more than 500 elements open at once"


@pytest.mark.parametrize(
    "text",
    [
        "<b>" * 9_000,
        "<div>" * 5_000,
        "<p><b>" * 4_000,
        "<a><p>" * 4_000,
        "<table>a" * 3_000,
        "<p " + " ".join(f"a{i}=1" for i in range(3_000)) + ">",
        "<" * 29_000,
        "&" * 29_000,
        "<script>" + "<!--" * 7_000,
        "<select><option>" * 1_800,
    ],
)
def test_hostile_html_is_judged(html, text):
    assert judged(html, Draw("", (), text)) in (True, False, None)


def test_attributes_are_limited():
    def element(count):
        return "<p " + " ".join(f"a{number}=1" for number in range(count)) + "></p>"

    assert Parses("html").accepts(element(500))
    assert "attributes" in Parses("html").fault(element(502))
