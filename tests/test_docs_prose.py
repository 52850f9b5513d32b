"""The words of the pages: terms explained at first use, plain words, short sentences, tasks first in how-tos."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.fixtures_house_words import findings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GLOSSARY = DOCS / "glossary.md"
INDEX = DOCS / "index.md"
PAGES = sorted(path for path in [ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("measurements/*.md")])
GRADED = [path for path in PAGES if path.parent == DOCS and path not in {GLOSSARY, INDEX}]
HOUSE_WORD_PAGES = sorted(
    [*(ROOT / f"{stem}.md" for stem in ("README", "CHANGELOG", "CONTRIBUTING", "ARCHITECTURE")), *DOCS.rglob("*.md")]
)

MOST = 9.0
"""Highest Flesch-Kincaid grade of a page: years of school after which it is easy to read."""

SCREEN = 30
"""Lines that a reader sees before scrolling."""

TASKS = re.compile(
    r"(?i)(?:add|ask|build|call|check|choose|compare|create|declare|draw|estimate|find|fix|generate|install|keep|limit|load|"
    r"make|measure|open|pass|point|print|put|read|replace|run|save|send|serve|set|share|speed|start|train|turn|use|wrap|write)\b"
)
"""Imperative verbs with which the first sentence of a how-to can begin."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def without_code(page: str) -> str:
    """Remove blocks of code, tables of contents, headings and pictures."""
    page = re.sub(r"^```.*?^```", "\n", page, flags=re.M | re.S)
    page = re.sub(r"(?:(?<=\n\n)|\A)(?:    .*\n|\n(?=    ))+", "\n", page)  # indented blocks
    page = re.sub(r"!\[.*?\]\(.*?\)", "", page, flags=re.S)
    return re.sub(r"^#+ .*$", "\n", page, flags=re.M)


def prose(page: str) -> list[str]:
    """Return the paragraphs and list items as plain text, without tables, markup and link targets."""
    page = re.sub(r"^\|.*$", "", without_code(page), flags=re.M)
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    page = re.sub(r"^ *(?:[-*]|\d+\.) +", "\n", page, flags=re.M)
    paragraphs = [" ".join(re.sub(r"[`*]", "", each).split()) for each in re.split(r"\n\s*\n", page)]
    return [each for each in paragraphs if each]


def syllables(word: str) -> int:
    """Count the groups of vowels, except a silent e at the end; at least one."""
    word = re.sub(r"[^a-z]", "", word.lower())
    silent = re.search(r"[^aeiouy]e$|[^aeiouytd]ed$|[^aeiouycgsxz]es$", word)
    spoken = re.search(r"[^aeiouy]les?$|[cs]hes$", word)
    return max(1, len(re.findall(r"[aeiouy]+", word)) - bool(silent and not spoken))


def sentences(paragraph: str) -> list[str]:
    """Split a paragraph after each word that ends with a period, a question mark or an exclamation mark."""
    return [each for each in re.split(r"(?<=[.!?])[\"')]* +", paragraph) if re.search(r"\w", each)]


def grade(page: str) -> float:
    """Return the Flesch-Kincaid grade (Kincaid et al. 1975) of a page's prose."""
    read = [sentence for paragraph in prose(page) for sentence in sentences(paragraph)]
    words = [word for sentence in read for word in re.split(r"[\s=/|]+", sentence) if re.search(r"\w", word)]
    return 0.39 * len(words) / len(read) + 11.8 * sum(map(syllables, words)) / len(words) - 15.59


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as on GitHub and in the built pages."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def terms(glossary: str) -> dict[str, list[str]]:
    """Return the terms of the glossary: for each anchor, the forms in which the term is written."""
    forms = {}
    for heading in re.findall(r"^### (.*)$", glossary, re.M):
        first, _, others = heading.split(":")[0].partition(" (")
        forms[anchor(heading)] = [first, *filter(None, others.rstrip(")").split(", "))]
    return forms


def pattern(form: str) -> str:
    """Return the expression for a term: symbols and abbreviations literally, words in any case and number."""
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
        ("An [attempt](glossary.md#attempt) is expensive; so are attempts.", set()),
        ("An attempt is expensive.", {"attempt"}),
        ("Attempts are expensive. An [attempt](glossary.md#attempt) is a text.", {"attempt"}),  # explained too late
        ("An [attempt](glossary.md#seed) is expensive.", {"attempt"}),  # the wrong entry
        ("An [attempt](wrap.md) is expensive.", {"attempt"}),
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


def how_to_pages(index: str) -> list[Path]:
    """Return the pages that the table of contents lists under "How to"."""
    (listed,) = re.findall(r"^```\{toctree\}\n:caption: How to\n:hidden:\n\n(.*?)^```", index, re.M | re.S)
    return [DOCS / f"{page}.md" for page in listed.split()]


HOW_TO = how_to_pages(INDEX.read_text())


@pytest.mark.parametrize("path", HOW_TO, ids=name)
def test_a_how_to_opens_with_its_task_and_its_code(path: Path) -> None:
    page = path.read_text()
    assert opens_with_a_task(page), f"begin with what the reader does, as in 'Wrap a pipeline:': {prose(page)[0]!r}"
    assert shows_code_at_once(page), f"show code within the first {SCREEN} lines"


def opens_with_a_task(page: str) -> bool:
    """Whether the first word of the prose is the imperative of a task."""
    return TASKS.match(prose(page)[0]) is not None


def shows_code_at_once(page: str) -> bool:
    """Whether a block of code begins on the first screen, after the opening sentence."""
    lines = page.splitlines()[:SCREEN]
    return any(re.match(r"```\w+$| {4}\w", line) and not before.strip() for before, line in pairwise(lines[2:]))


def test_the_how_tos_are_those_of_the_table_of_contents() -> None:
    assert len(HOW_TO) >= 10
    assert all(path in GRADED for path in HOW_TO)


def test_negative_control_a_how_to_that_opens_elsewhere() -> None:
    task, code = "# Page\n\nWrap a pipeline:\n\n", "```python\nwrap()\n```\n"
    assert opens_with_a_task(task + code)
    assert shows_code_at_once(task + code)
    assert shows_code_at_once(task + "    guardwrap serve\n")
    assert not opens_with_a_task("# Page\n\nFor engineers. After this page you can wrap.\n\n" + code)
    assert not opens_with_a_task("# Page\n\nThe pipeline is wrapped.\n\nWrap it.\n\n" + code)
    assert not shows_code_at_once(task)
    assert not shows_code_at_once(task + "- a point\n    that goes over two lines\n")
    assert not shows_code_at_once(task + "More about it.\n\n" * SCREEN + code)


@pytest.mark.parametrize("path", HOUSE_WORD_PAGES, ids=name)
def test_a_page_has_no_house_words(path: Path) -> None:
    assert not findings(path), "\n".join(map(str, findings(path)))


@pytest.mark.parametrize("word", ["dear", "heeded", "misspelt"])
def test_negative_control_house_words(word: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\nA mask is {word}.\n")
    assert [finding.words for finding in findings(page)] == [word]
    page.write_text("# Page\n\nA mask is expensive.\n")
    assert not findings(page)


@pytest.mark.parametrize("path", [ROOT / "README.md", GLOSSARY, *GRADED], ids=name)
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
