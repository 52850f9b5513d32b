"""Conversion of pages to one HTML file without scripts or external resources, for phones and dark mode too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import count

from guardwrap import __version__
from guardwrap.report.blocks import (
    Bars,
    Block,
    Cell,
    Chart,
    Cloud,
    Curves,
    Note,
    Page,
    Points,
    SampleText,
    Table,
    Text,
    Texts,
    in_line,
    in_words,
    visible,
)
from guardwrap.report.charts import alt_of, can_be_drawn, chart_table, edges_of, methods_of, svg_of
from guardwrap.report.terms import Term, first_uses, used_in

_SHORT = 24  # longest cell, in characters, that is kept on one line
_LONG = 56  # a row's name of more characters is styled as a sentence

_CSS = """
:root { color-scheme: light dark; --ink: #16181c; --paper: #fff; --line: #8886; --soft: #8881; --link: #0b5cad;
  --shade: #0003; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #16181c; --link: #8cc0ff;
  --shade: #fff3; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { margin-top: 2.5rem; font-size: 1.3rem; line-height: 1.3; border-bottom: 1px solid var(--line); }
h3 { margin-top: 2rem; font-size: 1.1rem; line-height: 1.3; }
a { color: var(--link); }
nav ul { padding-left: 1.25rem; }
p, figcaption, .hint { max-width: 46rem; }
p { white-space: pre-line; }
figcaption, .hint, .note, footer, nav { font-size: .875rem; }
.note { border-left: .25rem solid #d55e00; padding-left: .75rem; }
figure { margin: 1.5rem 0; }
figure > strong, .title { display: block; font-weight: 600; }
figure svg { width: 100%; height: auto; display: block; margin: .5rem 0; }
.broad { display: none; }
@media (min-width: 38rem) { figure .broad { display: block; } figure .slim { display: none; } }
details { margin: .5rem 0; font-size: .875rem; }
.legend dl { display: grid; grid-template-columns: max-content minmax(0, 46rem); gap: .25rem 1rem; margin: .5rem 0; }
.legend dt { font-weight: 600; }
.legend dd { margin: 0; }
abbr { cursor: help; text-underline-offset: .2em; }
summary { cursor: pointer; padding: .25rem 0; }
.wide { overflow-x: auto; margin: 1rem 0; background:
  linear-gradient(to right, var(--paper) 1rem, transparent) left / 2.5rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 1rem, transparent) right / 2.5rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / 1rem 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / 1rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .5rem 0; }
caption span { position: sticky; left: 0; display: inline-block; max-width: min(46rem, 100vw - 2rem); }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  min-width: 4.5rem; max-width: min(34rem, 62vw);
  overflow-wrap: anywhere; }
th { overflow-wrap: break-word; }
th[scope=row] { min-width: 7rem; max-width: 16rem; }
th.long { min-width: 11rem; font-weight: 400; }
@media (min-width: 40rem) { th[scope=row] { min-width: 11rem; } th.long { min-width: 20rem; max-width: 26rem; } }
th[scope=col] { vertical-align: bottom; }
td.n { white-space: nowrap; }
/* On a phone the interval wraps below its figure, and numbers are not broken, so that more columns fit. */
@media (max-width: 38rem) { td, th { padding-right: .6rem; }
  td.n { white-space: normal; overflow-wrap: normal; min-width: 0; } }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); padding: .75rem; margin: .5rem 0;
  font: .9375rem/1.5 ui-serif, Georgia, serif; border-radius: .25rem; max-height: 24rem; overflow-y: auto; }
mark { background: #ffd866; color: #16181c; border-radius: .2em; padding: 0 .1em; }
"""


@dataclass
class _Report:
    """State shared by the parts of a report while it is written."""

    left: dict[str, Term]  # terms that no table has used yet, by name
    methods: Sequence[str]  # methods of all charts; each has one color
    names: Iterator[str] = field(default_factory=lambda: (f"c{i}" for i in count(1)))  # ids for drawings


def html_report(pages: Sequence[Page], title: str | None = None, sources: Sequence[str] = ()) -> str:
    """Write a report as HTML."""
    terms = used_in("\n".join(text for page in pages for text in _author_texts(page)))
    blocks = [block for page in pages for section in page.sections for block in section.blocks]
    methods = methods_of(block for block in blocks if isinstance(block, Curves | Points | Bars | Cloud))
    report = _Report({term.name: term for term in terms}, methods)
    head = in_line(title if title is not None else pages[0].title)
    whole = title is None and len(pages) == 1  # then the page's title is the report's
    level = 2 if whole else 3
    links, body, anchors = [], [], count(1)
    for page in pages:
        if not whole:
            anchor = f"s{next(anchors)}"
            links.append((anchor, page.title))
            body.append(f'<h2 id="{anchor}" dir="auto">{_shown(page.title)}</h2>')
        for section in page.sections:
            anchor = f"s{next(anchors)}"
            if whole:
                links.append((anchor, section.title))
            body.append(f'<section>\n<h{level} id="{anchor}" dir="auto">{_shown(section.title)}</h{level}>')
            body += [_block(block, report) for block in section.blocks]
            body.append("</section>")
    made = f"Made by guardwrap {__version__}" + (f" from {', '.join(sources)}" if sources else "")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{_shown(head)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<style>{_CSS}</style>\n</head>\n<body>\n<main>\n<h1 dir="auto">{_shown(head)}</h1>\n'
        f"{_contents(links)}{_legend(terms)}"
        + "\n".join(body)
        + f"\n</main>\n<footer>{_tag('p', made)}</footer>\n</body>\n</html>\n"
    )


def _contents(links: Sequence[tuple[str, str]]) -> str:
    if len(links) < 3:
        return ""
    lines = "".join(
        f'<li dir="auto"><a href="#{anchor}">{_shown(in_line(text, 90))}</a></li>' for anchor, text in links
    )
    return f'<nav aria-label="Contents"><ul>{lines}</ul></nav>\n'


def _author_texts(page: Page) -> Iterator[str]:
    """Yield captions, titles and notes; not prompts, settings or sample texts, in which a Z is not a symbol."""
    for block in (block for section in page.sections for block in section.blocks):
        yield block.caption or ""
        if isinstance(block, Table):
            yield from block.columns
            yield from (row[0] for row in block.rows if row and isinstance(row[0], str))
        elif isinstance(block, Curves | Points | Bars | Cloud):
            yield from (block.title, *(one.name for one in block.series))
            yield from () if isinstance(block, Cloud) else (block.x, block.y)
        elif isinstance(block, Texts):
            yield block.title
        elif isinstance(block, Note):
            yield block.text


def _legend(terms: Sequence[Term]) -> str:
    if not terms:
        return ""
    lines = "".join(f"<dt>{_shown(term.name)}</dt><dd>{_shown(term.meaning)}</dd>" for term in terms)
    return f'<details class="legend"><summary>Words and symbols on this page</summary><dl>{lines}</dl></details>\n'


def _block(block: Block, report: _Report) -> str:
    if isinstance(block, Text):
        return _caption(block.caption) + _tag("p", block.text)
    if isinstance(block, Note):
        return _caption(block.caption) + _tag("p", block.text, "note")
    if isinstance(block, Table):
        return _table(block, report)
    if isinstance(block, Curves | Points | Bars | Cloud):
        return _chart(block, report)
    samples = "\n".join(f'<pre dir="auto">{_marked(sample)}</pre>' for sample in block.texts)
    hint = _tag("p", block.caption, "hint") if block.caption else ""
    return f"{_tag('p', block.title, 'title')}{hint}{samples or _tag('p', 'None.')}"


def _chart(block: Chart, report: _Report) -> str:
    said = " ".join(part for part in (block.caption, edges_of(block)) if part)
    table = chart_table(block)
    behind = f"<details><summary>The figures</summary>{_table(table, None)}</details>" if table and table.rows else ""
    if can_be_drawn(block):
        shown = svg_of(block, next(report.names), report.methods)
        drawn = f'<div role="img" aria-label="{_shown(alt_of(block))}">{shown}</div>'
    else:
        drawn = _tag("p", "No data to draw.")
    caption = _tag("figcaption", said) if said else ""
    return f"<figure>{_tag('strong', block.title)}{drawn}{caption}{behind}</figure>"


def _table(table: Table, report: _Report | None) -> str:
    """Write a table; with ``report=None``, as for the folded table below a chart, terms are not explained."""
    titles = "".join(f'<th scope="col" dir="auto">{_explained(title, report)}</th>' for title in table.columns)
    lines = "".join(
        f"<tr>{''.join(_cell(cell, report, first=i == 0) for i, cell in enumerate(row))}</tr>\n" for row in table.rows
    )
    caption = f"<caption>{_tag('span', table.caption)}</caption>" if table.caption else ""
    label = f' aria-label="{_shown(table.caption)}"' if table.caption else ""
    return (
        f'<div class="wide" tabindex="0" role="region"{label}>'
        f"<table>{caption}\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{lines}</tbody></table></div>"
    )


def _cell(cell: Cell, report: _Report | None, *, first: bool) -> str:
    """Write a cell; the first one of a row is its header, in which terms are explained."""
    if first:
        kind = ' class="long"' if len(in_words(cell)) > _LONG else ""
        return f'<th scope="row"{kind} dir="auto">{_explained(in_words(cell), report)}</th>'
    text = in_words(cell)
    if not isinstance(cell, str):
        return _tag("td", text.replace(", ", ",\u00a0"), "n")  # keep an interval on one line
    return _tag("td", text, "n" if len(text) <= _SHORT else "")


def _explained(text: str, report: _Report | None) -> str:
    """Escape a text, and add a tooltip to each term that is used for the first time."""
    if report is None:
        return _shown(text)
    return "".join(
        _shown(piece) if term is None else f'<abbr title="{_shown(term.meaning)}">{_shown(piece)}</abbr>'
        for piece, term in first_uses(text, report.left)
    )


def _marked(sample: SampleText) -> str:
    """Escape a text and highlight its spans; overlapping spans are merged."""
    merged: list[list[int]] = []
    for begin, end in sorted(span for span in sample.spans if span[0] < span[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    parts, done = [], 0
    for begin, end in merged:
        parts += [_shown(sample.text[done:begin]), f"<mark>{_shown(sample.text[begin:end])}</mark>"]
        done = end
    # HTML drops a line break right after <pre>.
    return "\n" + "".join([*parts, _shown(sample.text[done:])])


def _caption(text: str | None) -> str:
    return _tag("p", text, "title") if text else ""


def _tag(name: str, text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<{name}{attribute} dir="auto">{_shown(text)}</{name}>'


def _shown(text: str) -> str:
    """Escape HTML, and replace characters that HTML cannot hold."""
    return escape(visible(text))
