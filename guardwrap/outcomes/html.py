"""Conversion of pages to one HTML file, by the template ``report.html.j2``, with explanations of their symbols."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from guardwrap import __version__
from guardwrap.outcomes.blocks import Cloud, Note, Page, SampleText, Table, Text, Texts, in_line, in_words, visible
from guardwrap.outcomes.charts import alt_of, can_be_drawn, chart_table, edges_of, methods_of, svg_of

_AUTOESCAPE = True  # so that nothing in a page is read as HTML


def html_report(pages: Sequence[Page], title: str | None = None, sources: Sequence[str] = ()) -> str:
    """Write a report as HTML."""
    import jinja2  # only here, as it would slow down --help
    from markupsafe import Markup

    def without_controls(value: Any) -> Any:
        return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        autoescape=_AUTOESCAPE, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined, finalize=without_controls,
    )  # fmt: skip
    charts = [block for page in pages for section in page.sections for block in section.blocks
              if not isinstance(block, Text | Note | Table | Texts)]  # fmt: skip
    methods, names = methods_of(charts), (f"c{i}" for i in count(1))
    terms = used_in("\n".join(text for page in pages for text in _author_texts(page)))
    unexplained = {term.name: term for term in terms}
    template = environment.from_string(Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        pages=pages,
        head=in_line(title if title is not None else pages[0].title),
        whole=title is None and len(pages) == 1,  # then the page's title is the report's
        sources=sources,
        version=__version__,
        terms=terms,
        first_uses=partial(first_uses, left=unexplained),
        drawn=lambda block: Markup(svg_of(block, next(names), methods)),
        pieces=_pieces,
        alt_of=alt_of,
        can_be_drawn=can_be_drawn,
        chart_table=chart_table,
        edges_of=edges_of,
        in_line=in_line,
        in_words=in_words,
    )


def _author_texts(page: Page) -> Iterator[str]:
    """Yield captions, titles and notes; not prompts, settings or sample texts, in which a Z is not a symbol."""
    for block in (block for section in page.sections for block in section.blocks):
        yield block.caption or ""
        if isinstance(block, Table):
            yield from block.columns
            yield from (row[0] for row in block.rows if row and isinstance(row[0], str))
        elif isinstance(block, Note):
            yield block.text
        elif not isinstance(block, Text):
            yield block.title
            if not isinstance(block, Texts):
                yield from (one.name for one in block.series)
                yield from () if isinstance(block, Cloud) else (block.x, block.y)


def _pieces(sample: SampleText) -> list[tuple[str, bool]]:
    """Split a text at its spans, and return whether each piece is inside one; overlapping spans are merged."""
    pieces, done = [], 0
    merged: list[list[int]] = []
    for begin, end in sorted(span for span in sample.spans if span[0] < span[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    for begin, end in merged:
        pieces += [(sample.text[done:begin], False), (sample.text[begin:end], True)]
        done = end
    return [*pieces, (sample.text[done:], False)]


class Term(NamedTuple):
    """A symbol or abbreviation with its meaning, in words and other terms of the legend."""

    name: str
    meaning: str
    pattern: str | None = None  # regular expression that finds it in a text; None for the name as a whole word

    def found_in(self, text: str) -> re.Match[str] | None:
        """Return its first use in a text."""
        return re.search(self.pattern or rf"(?<!\w){re.escape(self.name)}(?!\w)", text)


TERMS = (
    Term("a", "your model's own distribution, under its prompt and settings", r"(?<=‖)a(?=\))|(?<=log )a\b"),
    Term("g", "the target: your model's own distribution, given the constraint", r"(?<![\w'])g(?![\w'])"),
    Term(
        "a'",
        "a proposal: another source of texts, such as a hint or an adapter, that satisfies the constraint more often",
    ),
    Term("g'", "the proposal's distribution, given the constraint"),
    Term(
        "AR",
        "acceptance rate: the share of attempts that satisfy the constraint; a text takes 1 / AR attempts on average",
        r"(?<![\w'])AR(?:_a'?)?(?![\w'])",
    ),
    Term("Z", "the probability that a text of your model satisfies the constraint", r"(?<![\w'])Z(?![\w'])"),
    Term("KL", "Kullback-Leibler divergence: 0 if two distributions are the same, larger if they are further apart"),
    Term(
        "projected KL",
        "KL of one feature only: the position of the constraint's match in a text; other differences do not count",
    ),
    Term("nats", "the unit of KL: one nat is an average factor of 2.7 in probability", r"(?<!\w)nats?(?!\w)"),
    Term("TVD", "total variation distance, from 0 to 1: the largest difference in the probability of any event"),
    Term(
        "ESS",
        "effective sample size: how many draws of the target the attempts are worth",
        r"(?<!\w)(?:ESS|effective sample size)(?!\w)",
    ),
    Term(
        "Pareto k",
        "how heavy the tail of the weights is: if it is too high, the attempts so far may lack the weights that matter "
        "most, and no upper end of a distance is known",
    ),
    Term("QRS", "quasi-rejection sampling: drops texts that a proposal writes too often, to get closer to the target"),
    Term("β", "how strict QRS is: a larger β costs more and gets closer to the target"),
    Term("IMH", "independent Metropolis-Hastings: a Markov chain over texts; more steps get closer to the target"),
    Term("base", "your model itself, in tables of figures", r"(?<![\w'-])base(?![\w-])"),
    Term(
        "Theorem 2",
        "KL(g‖a') is KL(g‖g') minus the logarithm of AR: the cost of texts and their distance to the target add up;"
        ' from "the paper": Kim et al., Guaranteed Generation from Large Language Models (ICLR 2025)',
    ),
    Term("R-hat", "whether chains agree: near 1 if they do"),
    Term("Self-BLEU", "how alike texts are, from 0 to 100: higher is more alike"),
)
"""In the order of the legend: a term comes after those that its meaning uses."""

_SPEAKS_OF_G = re.compile(r"g‖|‖g|(?<!\w)g'(?!\w)|of g\b")


def used_in(text: str) -> list[Term]:
    """Return the terms that a page's captions, titles and notes use.

    Single letters count only if they mention g in a formula; a lone "g" may mean grams.
    """
    terms = [term for term in TERMS if term.found_in(text)]
    if _SPEAKS_OF_G.search(text):
        return terms
    return [term for term in terms if len(term.name.rstrip("'")) > 1 or term.name == "β"]


def first_uses(text: str, left: dict[str, Term]) -> list[tuple[str, Term | None]]:
    """Split a text at the first uses of the terms that are left, and remove these."""
    uses = [(*match.span(), term) for term in left.values() if (match := term.found_in(text))]
    pieces: list[tuple[str, Term | None]] = []
    done = 0
    for begin, end, term in sorted(uses, key=lambda use: use[:2]):
        if begin >= done:
            pieces += [(text[done:begin], None), (text[begin:end], term)]
            done = end
            del left[term.name]
    return [piece for piece in [*pieces, (text[done:], None)] if piece[0]]
