"""The words of the pages: no term before it is explained, and sentences that are short enough."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GLOSSARY = DOCS / "glossary.md"
PAGES = sorted(path for path in [ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("measurements/*.md")])
HOW_TO = [path for path in PAGES if path.parent == DOCS and path.name not in {"glossary.md", "index.md"}]

MOST = 9.0
"""Flesch-Kincaid grade of what everyone reads: years of school after which a text is read with ease."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def without_code(page: str) -> str:
    """Leave out what is no prose: blocks of code, tables of contents, headings, pictures."""
    page = re.sub(r"^```.*?^```", "\n", page, flags=re.M | re.S)
    page = re.sub(r"(?:(?<=\n\n)|\A)(?:    .*\n|\n(?=    ))+", "\n", page)  # indented blocks
    page = re.sub(r"!\[.*?\]\(.*?\)", "", page, flags=re.S)
    return re.sub(r"^#+ .*$", "\n", page, flags=re.M)


def prose(page: str) -> list[str]:
    """Return the paragraphs and points of lists as they are read: no tables, no marks, no addresses of links."""
    page = re.sub(r"^\|.*$", "", without_code(page), flags=re.M)
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    page = re.sub(r"^ *(?:[-*]|\d+\.) +", "\n", page, flags=re.M)
    paragraphs = [" ".join(re.sub(r"[`*]", "", each).split()) for each in re.split(r"\n\s*\n", page)]
    return [each for each in paragraphs if each]


def syllables(word: str) -> int:
    """Count the groups of vowels, less an e at the end that is not spoken; what has no vowel is one."""
    word = re.sub(r"[^a-z]", "", word.lower())
    silent = re.search(r"[^aeiouy]e$|[^aeiouytd]ed$|[^aeiouycgsxz]es$", word)
    spoken = re.search(r"[^aeiouy]les?$|[cs]hes$", word)
    return max(1, len(re.findall(r"[aeiouy]+", word)) - bool(silent and not spoken))


def sentences(paragraph: str) -> list[str]:
    """Cut where a point, a question or an exclamation mark ends a word; the end of a paragraph ends a sentence too."""
    return [each for each in re.split(r"(?<=[.!?])[\"')]* +", paragraph) if re.search(r"\w", each)]


def grade(page: str) -> float:
    """Return the Flesch-Kincaid grade (Kincaid et al. 1975) of a page's prose."""
    found = [sentence for paragraph in prose(page) for sentence in sentences(paragraph)]
    words = [word for sentence in found for word in re.split(r"[\s=/|]+", sentence) if re.search(r"\w", word)]
    return 0.39 * len(words) / len(found) + 11.8 * sum(map(syllables, words)) / len(words) - 15.59


def anchor(heading: str) -> str:
    """Return what a link to a heading ends with, as GitHub and the built pages name it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def terms(glossary: str) -> dict[str, list[str]]:
    """Return the glossary's terms: from anchors to the forms in which each is written."""
    found = {}
    for heading in re.findall(r"^### (.*)$", glossary, re.M):
        first, _, others = heading.split(":")[0].partition(" (")
        found[anchor(heading)] = [first, *filter(None, others.rstrip(")").split(", "))]
    return found


def pattern(form: str) -> str:
    """Return what finds a term: a symbol or an abbreviation as it stands, a word in any case and number."""
    if form == "a":  # alone it is an article
        return r"(?<!\w)a(?=\(y)"
    if len(form.rstrip("'")) == 1 or form.isupper():
        return rf"(?<![\w']){re.escape(form)}(?![\w'])"
    return rf"(?i)(?<![\w-]){re.escape(form)}s?(?![\w-])"


def unexplained(page: str, known: dict[str, list[str]]) -> set[str]:
    """Return the terms whose first use on a page is neither a link to their entry nor the term in bold.

    A term that stands alone in bold is explained there.
    """
    text = " ".join(re.sub(r"`[^`]*`", " ", without_code(page)).split())
    text = re.sub(r"\[([^\]]*)\]\((?![^)]*glossary\.md#)[^)]*\)", r"\1", text)  # other links are read as text
    read = re.sub(r"(?<=\])\([^)]*\)", lambda address: " " * len(address.group()), text)
    missing = set()
    for target, forms in known.items():
        uses = [found.start() for form in forms for found in re.finditer(pattern(form), read)]
        bold = rf"\*\*(?:{'|'.join(map(pattern, forms))})\*\*".replace("(?i)", "")
        explained = [found.span() for found in re.finditer(bold, text)]
        explained += [found.span() for found in re.finditer(rf"\[[^\]]*\]\([^)]*glossary\.md#{target}\)", text)]
        if uses and not any(start <= min(uses) < end for start, end in explained):
            missing.add(target)
    return missing


KNOWN = terms(GLOSSARY.read_text())


@pytest.mark.parametrize("path", [path for path in PAGES if path != GLOSSARY], ids=name)
def test_no_term_is_used_before_it_is_explained(path: Path) -> None:
    missing = unexplained(path.read_text(), KNOWN)
    assert not missing, f"link these at their first use: {', '.join(sorted(missing))}"


def test_the_glossary_has_what_the_pages_need() -> None:
    assert len(KNOWN) >= 30
    assert KNOWN["acceptance-rate-ar"] == ["acceptance rate", "AR"]
    assert KNOWN["g-what-a-proposal-gives"] == ["g'"]
    for anchors in (re.findall(r"glossary\.md#([^)]+)\)", path.read_text()) for path in PAGES):
        assert set(anchors) <= KNOWN.keys()


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        ("An [attempt](glossary.md#attempt) is dear; so are attempts.", set()),
        ("An attempt is dear.", {"attempt"}),
        ("Attempts are dear. An [attempt](glossary.md#attempt) is a text.", {"attempt"}),  # explained too late
        ("An [attempt](glossary.md#seed) is dear.", {"attempt"}),  # the wrong entry
        ("An [attempt](wrap.md) is dear.", {"attempt"}),
        ("An **attempt** is one text that the model writes.", set()),
        ("**What attempts cost.** A lot.", {"attempt"}),  # in bold, and not explained
        ("`attempts` is a name in code.\n\n    attempts\n\n# Attempts\n", set()),
        ("| what | attempts |", {"attempt"}),
        ("The acceptance\nrate.", {"acceptance-rate-ar"}),
        ("Draws of g.", {"g-the-target"}),
        ("Draws of g'.", {"g-what-a-proposal-gives"}),
        ("A text, a budgetary matter.", set()),
        ("The mean of a(y).", {"a-your-model"}),
        ("It has an AR of .1", {"acceptance-rate-ar"}),
    ],
)
def test_negative_controls_of_terms(page: str, missing: set[str]) -> None:
    assert unexplained(page, KNOWN) == missing


@pytest.mark.parametrize("path", HOW_TO, ids=name)
def test_a_how_to_begins_with_who_it_is_for(path: Path) -> None:
    assert says_who(path.read_text())


def says_who(page: str) -> bool:
    """Whether the first paragraph says who a page is for, and what they can do after it."""
    first = prose(page)[0]
    return first.startswith("For ") and "After this page you" in first


def test_negative_control_a_page_that_begins_elsewhere() -> None:
    assert says_who("# Page\n\nFor engineers. After this page you can wrap.\n")
    assert not says_who("# Page\n\nWrap it.\n\nFor engineers. After this page you can wrap.\n")
    assert not says_who("# Page\n\nFor engineers.\n")


@pytest.mark.parametrize("path", [ROOT / "README.md", GLOSSARY, *HOW_TO], ids=name)
def test_it_is_easy_to_read(path: Path) -> None:
    assert grade(path.read_text()) <= MOST


def test_negative_control_long_words_in_a_long_sentence() -> None:
    hard = (
        "Notwithstanding considerations of computational complexity, conditional distributions over admissible "
        "continuations necessitate renormalisation, whose intractability motivates approximate inference procedures."
    )
    easy = "The cat sat on the mat. It was a cold day. So the cat went in."
    assert grade(hard) > MOST > grade(easy)
    assert grade("```python\n" + "consideration " * 50 + "\n```\n\n" + easy) == grade(easy)  # code is no prose
    assert grade(f"{easy}\n\n| {hard} |\n|---|\n") == grade(easy)
    assert grade(f"[The cat](https://example.com/considerations-of-complexity) sat on the mat. {easy}") < MOST


@pytest.mark.parametrize(
    ("word", "count"),
    [("cat", 1), ("table", 2), ("tables", 2), ("accepted", 3), ("drawn", 1), ("asked", 1), ("wishes", 2), ("times", 1)],
)
def test_syllables(word: str, count: int) -> None:
    assert syllables(word) == count
