"""Conversion of pages to one HTML file, by the template ``report.html.j2``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from guardwrap import __version__
from guardwrap.report.blocks import Cloud, Note, Page, SampleText, Table, Text, Texts, in_line, in_words, visible
from guardwrap.report.charts import alt_of, can_be_drawn, chart_table, edges_of, methods_of, svg_of
from guardwrap.report.terms import first_uses, used_in

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
