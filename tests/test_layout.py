"""The house: ARCHITECTURE.md names what exists, and the pages link to terms that the glossary has."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PACKAGE = ROOT / "guardwrap"


def unknown_names(document: str) -> set[str]:
    """Return what a document names in backticks and does not exist: files, tests, and members with their modules."""
    files = [path for folder in (PACKAGE, TESTS) for path in folder.rglob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    defined = {*re.findall(r"(?:def|class) (\w+)", text), *(part for path in files for part in path.parts)}
    defined |= {path.stem for path in files}
    named = re.findall(r"`([\w./]+\.py|test_\w+|\w+\.\w+)`", document)
    return {name for name in named if not set(re.split(r"[./]", name.removesuffix(".py"))) <= defined}


def test_architecture_names_what_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert unknown_names(text) == set()
    folders = set(re.findall(r"`(\w+)/`", text))
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= folders
    wrong = {"account.py", "account.commit", "request_state.nothing", "test_nothing"}
    assert unknown_names(f"`{'` `'.join(wrong)}` `RequestState.commit` `scheduling/backend.py`") == wrong


def test_each_folder_of_tests_is_a_package() -> None:
    """Otherwise two files of one name would be one module."""
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def missing_terms(page: str, glossary: str) -> set[str]:
    """Return the anchors of the glossary that a page links to and that no heading there has."""
    headings = re.findall(r"^### (.*)$", glossary, re.M)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return set(re.findall(r"glossary\.md#([^)]+)\)", page)) - anchors


def test_the_glossary_has_the_terms_that_pages_link_to() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert missing_terms(page.read_text(encoding="utf-8"), glossary) == set(), page
    assert missing_terms("[a](glossary.md#attempt) [b](glossary.md#no-such-term)", glossary) == {"no-such-term"}


_READS = ("startswith", "endswith", "partition", "rpartition", "removeprefix", "removesuffix", "split", "replace",
          "find", "index", "count", "match", "search", "fullmatch", "sub")  # fmt: skip
_SENTENCE = re.compile(r"[A-Za-z]{2,}[,:;]? [A-Za-z]")
_FOREIGN = {
    "result_files.py": "pydantic's",
    "transformers_internals.py": "transformers'",
    "llguidance_matcher.py": "llguidance's",
    "parses.py": "CPython's",
    "yaml_nodes.py": "PyYAML's",
    "catalogue_command.py": "descriptions of constraint files",
    "sampler_registry.py": "docstrings, for the descriptions of a schema",
    "json_progress.py": "names of states",
    "records.py": "names of digests",
}
"""Files that may read sentences, and whose these are."""


def read_sentences(source: str) -> list[str]:
    """Return the sentences that code compares with, splits at, replaces, or takes as keys."""

    def sentences(node: ast.AST) -> list[str]:
        texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
        return [text for text in texts if isinstance(text, str) and _SENTENCE.search(text)]

    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            literal = (ast.Constant, ast.JoinedStr, ast.Tuple, ast.List, ast.Set)
            found += [text for side in sides if isinstance(side, literal) for text in sentences(side)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _READS:
            found += [text for argument in node.args[:1] for text in sentences(argument)]
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant | ast.JoinedStr):
            found += sentences(node.slice)
    return found


def test_no_code_reads_its_own_sentences() -> None:
    """Facts are enums and records; words are only shown."""
    files = [path for path in PACKAGE.rglob("*.py") if path.name not in _FOREIGN]
    assert {str(path): texts for path in files if (texts := read_sentences(path.read_text(encoding="utf-8")))} == {}
    reading = [
        'report.proposal == "the model itself, twisted"',
        'advice.startswith("a larger pilot")',
        'report.rejections["the sampler"]',
        'words.startswith(("exactly g", "nearly"))',
        '"not try" in str(error)',
        'problem.replace("pass allow", flag)',
    ]
    assert all(map(read_sentences, reading))
    assert read_sentences('kind == "qrs" and names["top_k"] and "; ".join(words).split(", ")') == []


def possessive_groups(source: str) -> list[str]:
    """Return the expressions given to ``re`` in which a group is atomic, or repeated possessively."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    of_re = [node for node in calls if re.match(r"re\.\w+$", ast.unparse(node.func))]
    return [text for node in of_re if re.search(r"\)(?:[*+?]|\{+[\d,]+\}+)\+|\(\?>", text := ast.unparse(node.args[0]))]


def test_no_group_is_possessive_where_python_misreads_it() -> None:
    """Before Python 3.11.5 possessive groups of alternatives match too much (CPython issue 106052)."""
    found = {str(path): possessive_groups(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    assert not {path: texts for path, texts in found.items() if texts}
    wrong = ["re.compile(r'(?:a|b)*+')", "re.match(f'(?:{x}|b){{2,3}}+', y)", "re.sub('(?>a|b)', '', y)"]
    assert [len(possessive_groups(each)) for each in wrong] == [1, 1, 1]
    assert not possessive_groups("regex.compile('(?:a|b)*+'); re.compile('[ab]*+(c)')")


def test_what_the_makefile_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    lists = dict(re.findall(r"^(\w+) := (.*)$", makefile, flags=re.MULTILINE))
    named = [f"tests/{path}" for name in ("FAST", "AGENT_TESTS") for path in lists[name].split()]
    named += re.findall(r"\b(?:tests|benchmarks|\.github)/[\w./]+", makefile)
    assert [path for path in named if not (ROOT / path).exists()] == []
