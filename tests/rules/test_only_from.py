"""Hosts, URLs, addresses, citations and matches only from a list."""

from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import OnlyFrom, Part, Verdict
from guardwrap.errors import CheckFailed
from guardwrap.rules import only_from
from guardwrap.testing import check_constraint

U, V = Verdict.UNDECIDED, Verdict.VIOLATED
HOSTS = ["good.com", "*.good.org", "müller.de", "例え.jp", "localhost"]
RULES: dict[str, dict[str, Any]] = {
    "hosts": {"allowed": HOSTS, "of": "hosts"},
    "urls": {"allowed": ["https://good.com/a", "http://good.com:8080/?q=1"], "of": "urls"},
    "emails": {"allowed": ["ann@good.com", "*@good.org"], "of": "emails"},
    "citations": {"allowed": ["1", "2", "3", "smith2020", "Smith, 2020", "Smith & Lee, 2019",
    "Doe et al., 2001"], "of": "citations"},
    "pattern": {"allowed": ["@ann", "@bob"], "pattern": r"@[a-z]+"},
    "group": {"allowed": ["Ann Lee"], "pattern": r"(?:Dr|Prof)\.\s+(\p{Lu}\w+\s\p{Lu}\w+)", "ignore_case": True},
}  # fmt: skip


def judged(rule: OnlyFrom, accepted: list[str], rejected: list[str]) -> None:
    assert [text for text in accepted if not rule.accepts(text)] == []
    assert [text for text in rejected if rule.accepts(text)] == []
    check_constraint(rule, [*accepted, *rejected])
    check_constraint(rule, [f"{text} so" for text in [*accepted, *rejected]])


def test_hosts() -> None:
    judged(
        OnlyFrom(**RULES["hosts"]),
        [
            "https://good.com/a?b#c", "HTTPS://GOOD.COM.",
            "です。net などを表示します。ac", "See good.com, or www2.good.org!",
            "https://user@good.com:80/",
            "https://good.com./", "https://ｇｏｏｄ.com", "https://good。com/", "http://xn--mller-kva.de/",
            "https://MÜLLER.de",
            "https://mu\u0308ller.de", "http://例え.jp", "http://xn--r8jz45g.jp", "(https://good.com)", "ann@good.com",
            "http://localhost:3000/", "e.g. this, i.e. that, 3.5 kg, README.md, main.py, z.B. so, a.m., U.S.A.", "",
            "https://good.com/evil.com", "https://good.com/?u=https://good.com", "https:////good.com",
            "https://go%6Fd.com",
            "<https://good.com>", "„good.com“", "[a](https://good.com/x)", "https://go\u00adod.com",
            "https://a.b.good.org",
        ],
        [
            "https://good.com@evil.com", "https://good.com:a@evil.com/", "https://evil.com/good.com", "evil.com",
            "https://evil.com\\@good.com", "https://good.com.evil.com", "https://good.org", "http://evilgood.com",
            "https://xn--80ak6aa92e.com", "https://gооd.com", "ftp://evil.net", "//evil.net/x", "www.evil.net",
            "WWW.EVIL.NET",
            "ann@evil.net", "https://good.com%2eevil.net", "https://good.com%40evil.net", "https://evil.net.",
            "http://[::1]/",
            "http://127.0.0.1/", "https:/\\evil.net", "javascript://evil.net", "http://evil",
            "https://good.com，https://evil.com",
            "siehe evil.de", "voir evil.fr.", "看evil.cn。", "см. пример.рф", "https://good.com＠evil.com",
            "visit EVIL.COM", "evil。com",
            "https://good.com?@evil.net https://evil.net", "https://xn--good-.com", "https://xn--good-.com/",
            "good.com.br",
        ],
    )  # fmt: skip


def test_urls() -> None:
    judged(
        OnlyFrom(**RULES["urls"]),
        ["https://good.com/a", "See HTTPS://Good.com:443/a#part.", "http://good.com:8080/?q=1",
         "(https://good.com/a)", "good.com"],
        ["https://good.com/A", "https://good.com/a/", "http://good.com/a", "https://good.com/b/..",
         "https://good.com/a?x",
         "https://u@good.com/a", "https://good.com:8443/a", "https://good.com/a/%2e%2e/b", "www.evil.com"],
    )  # fmt: skip
    assert OnlyFrom(**RULES["urls"]).accepts("https://good.com/b/../a")


def test_links_that_touch() -> None:
    judged(
        OnlyFrom(**RULES["hosts"]),
        [
            "[https://good.com](https://good.com)", "[a](https://good.com)[b](https://good.com/x)",
            "![](https://good.com/a)![](https://good.com/b)", "(https://good.com),(http://localhost:1/)",
            "['https://good.com/a','https://good.com/b']", "https://good.com/a//b/c",
        ],
        [
            "[a](https://good.com/x)[b](https://evil.com/y)", "[https://good.com/x](https://evil.com/y)",
            "![](https://good.com/a)![](https://evil.com/b)", "[a](https://good.com/x)[v1.2](https://evil.com/y)",
            "['https://good.com/a','https://evil.com/b']", "见https://good.com/a，或https://evil.com/",
            "https://good.com/?u=https://evil.com", "[a](https://good.com)[b](//evil.net/)",
            # A browser may read these as one URL.
            "https://good.com)@evil.com/", "https://good.com)[@evil.com/", "https://good.com)(.evil.com/",
            "https://good.com)(x․evil․com/",
        ],
    )  # fmt: skip
    judged(
        OnlyFrom(**RULES["urls"]),
        ["[https://good.com/a](https://good.com/a)", "[a](https://good.com/a)[b](https://good.com/a)"],
        ["[https://good.com/a](https://good.com/b)", "https://good.com/a,https://good.com/b"],
    )


def test_emails() -> None:
    judged(
        OnlyFrom(**RULES["emails"]),
        ["Write to ann@good.com.", "ANN@Good.com", "bob@good.org", "mailto:ann@good.com", "a@b, @ann",
         "<ann@good.com>"],
        ["eve@good.com", "ann@evil.com", "ann@good.com.evil.com", "ann@good.org.evil.com", "xann@good.com",
         "a+ann@good.com",
         "ann＠evil.com", "joão@evil.com"],
    )  # fmt: skip


def test_citations() -> None:
    judged(
        OnlyFrom(**RULES["citations"]),
        ["So [1].", "So [1, 2], [1-3], [1–3], [^2].", "As \\cite{smith2020} and \\citep[p. 3]{smith2020}.",
         "[@smith2020, p. 3]",
         "(Smith, 2020)", "(see Smith, 2020, p. 3; Smith & Lee, 2019)", "(Smith and Lee, 2019)",
         "(Smith und Lee, 2019)",
         "(Doe et al., 2001)", "(Doe et al. 2001)", "[a] [x, y] [link](b)", "(in May 2020)", "(3, 4)", "array[i]",
         "\\cite {smith2020}"],
        ["So [4].", "[1, 4]", "[2-5]", "[3-1] [9]", "[^7]", "\\cite{smith2020,doe}", "[@doe]",
         "[see @smith2020; @doe]", "(Lee, 2019)",
         "(Smith, 2021)", "(Smith, 2020; Roe, 1999)", "(Smith, 2020, 2021)", "(Doe, 2001)", "(Nguyễn, 2020)",
         "(Иванов, 2020)",
         "(Smith, Lee, & Roe, 2019)", "(Doe et al., 2001a)"],
    )  # fmt: skip
    assert OnlyFrom(["Smith, Lee, & Roe, 2019"], of="citations").accepts("(Smith, Lee & Roe, 2019)")


def test_patterns() -> None:
    judged(OnlyFrom(**RULES["pattern"]), ["So @ann and @bob.", ""], ["@eve", "@ann @anna."])
    judged(OnlyFrom(**RULES["group"]), ["Dr.  ANN\nLee", "Ann Ray"], ["Prof. Ann Ray"])
    assert not OnlyFrom(["1"], of="citations", min=1).accepts("So.")
    assert OnlyFrom(["1"], of="citations", min=1).accepts("So [1].")
    assert not OnlyFrom([], of="hosts").accepts("evil.com")
    assert "1 of 2 hosts" in OnlyFrom(**RULES["hosts"]).fault("good.com evil.com")
    assert "0 citations" in OnlyFrom(["1"], of="citations", min=1).fault("So.")


def test_a_prefix_ends_with_the_item() -> None:
    for name, text, dead in [
        ("hosts", "https://good.com", False),
        ("hosts", "https://good.com.evil.net", False),
        ("hosts", "https://good.com.evil.net/", True),
        ("hosts", "https://evil.net@", False),
        ("hosts", "evil.com", False),
        ("hosts", "evil.com ", True),
        ("urls", "https://good.com/b", False),
        ("urls", "https://good.com/b ", True),
        ("emails", "eve@good.com,", True),
        ("citations", "[4", False),
        ("citations", "[4]", True),
        ("pattern", "@eve", False),
        ("pattern", "@eve ", False),
    ]:
        assert (OnlyFrom(**RULES[name]).verdict(text) is V) == dead, text


PIECES = {
    "hosts": ["https://", "good.com", "evil.com", "@", ":", "/", "\\", ".", "www.", "//", "a", " ", "xn--", ")", "(",
    "%2e", "ü", "\u0308",
              "good", "com", "。", "＠", "-", "]", "[", "\u00ad", "de", "'", "*.", "com.b", "r"],
    "urls": ["https://", "good.com", "/a", "/..", "#", "?", ".", " ", ")", "(", "@", ":443", "%", "2e"],
    "emails": ["ann", "@", "good.com", "good.org", ".", "evil", "-", " ", "+", "'", ",", "＠", "\u0301"],
    "citations": ["[", "]", "1", "4", ",", "-", " ", "^", "@", "smith2020", "\\cite", "{", "}", "(", ")", "Smith",
    ", ", "2020", "; ", "et al.", "&"],
    "pattern": ["@", "ann", "a", "b", " ", "."],
    "group": ["Dr.", " ", "Ann", "Lee", "ann", "."],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_laws(name: str, data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES[name]), max_size=12)))
    check_constraint(OnlyFrom(**RULES[name]), [text])
    for on in ("lines", "first_sentence", Part(after="/", missing="pass")):
        check_constraint(OnlyFrom(**RULES[name], on=on), [text])


def test_negative_control_hosts_that_have_not_ended() -> None:
    rule = OnlyFrom(["good.com.evil.net"], of="hosts")
    check_constraint(rule, ["https://good.com.evil.net"])

    def all_ended(pattern: Any, text: str) -> Any:
        return (match.group() for match in pattern.finditer(text))

    with patch.object(only_from, "_ended", all_ended), pytest.raises(AssertionError):
        check_constraint(rule, ["https://good.com.evil.net"])


HOSTILE = [
    *("https://" * 10_000, "a." * 50_000, "a@" * 50_000, "[1," * 30_000, "(Aa " * 20_000, "\\cite[" * 20_000),
    *("Aa, " * 30_000, "www." * 30_000, "a" * 100_000, "." * 100_000, "https://" + ")" * 100_000),
    *("https://" + "a/../" * 20_000, "[1-9999]" * 10_000, "https://xn--" + "9" * 50_000, "https://" + "%25" * 30_000),
    *(
        "a-" * 50_000 + ".com",
        "e\u0301\u0323" * 30_000 + "@a.com",
        "https://" + "e\u0301\u0323" * 30_000,
        "[@" * 30_000,
    ),
    *("(Aa et al. " * 9000, "(Aa & Aa" * 9000, "https://a" + "." * 100_000, "a.bc." * 20_000 + "!", "//a" * 30_000),
]


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_end_by_the_time_limit(text: str) -> None:
    for name in RULES:
        rule = OnlyFrom(**RULES[name])
        with suppress(CheckFailed):
            rule.accepts(text)
        rule.verdict(text)
