"""One page that holds an evaluation: no script, nothing from elsewhere, readable on a phone and in the dark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from guardwrap.draws import Estimate
from guardwrap.evaluation.drawing import Plot
from guardwrap.evaluation.figures import PromptFigures, ProposalFigures
from guardwrap.evaluation.settings import BASE
from guardwrap.evaluation.summary import HOW, LABELS, Evaluation, mean_over_prompts
from guardwrap.evaluation.tradeoff import Point

__all__ = ["html_report"]

_CSS = """
:root { color-scheme: light dark; --line: #8886; --soft: #8881; }
body { margin: 0 auto; padding: 1rem; max-width: 66rem; font: 1rem/1.5 system-ui, sans-serif; color: #16181c;
  background: #fff; }
p, dd, figcaption { max-width: 46rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .5rem 0; }
caption span { position: sticky; left: 0; display: inline-block; max-width: calc(100vw - 2rem); }
th, td { padding: .25rem .75rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; }
@media (min-width: 40rem) { th[scope=row] { white-space: nowrap; } }
figure { margin: 1.5rem 0; }
figure svg { width: 100%; max-width: 44rem; height: auto; display: block; }
figcaption, .note { font-size: .875rem; }
.note { border-left: .25rem solid #d55e00; padding-left: .75rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); padding: .75rem; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { body { color: #e6e8eb; background: #16181c; } }
"""

_UNKNOWN = "–"


def html_report(evaluation: Evaluation, plots: Sequence[Sequence[Plot]]) -> str:
    """Write the page.

    Parameters
    ----------
    evaluation
        What was found.
    plots
        Of each prompt.

    Returns
    -------
    str
        HTML. Texts in it satisfy the constraint; whatever came from outside is escaped.
    """
    title = f"Proposals and samplers for {evaluation.constraint}"
    body = [_tag("h1", title), _tag("p", HOW["notation"])]
    if len(evaluation.prompts) > 1:
        body.append(_tag("h2", f"Mean over {len(evaluation.prompts)} prompts"))
        body.append(_figures_table(mean_over_prompts(evaluation.prompts), HOW["mean"]))
    for prompt, drawn in zip(evaluation.prompts, plots, strict=True):
        body += _prompt(prompt, drawn)
    body += _settings(evaluation)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{_shown(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_CSS}</style>\n</head>\n<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _prompt(prompt: PromptFigures, plots: Sequence[Plot]) -> list[str]:
    body = [_tag("h2", "Prompt"), _tag("pre", prompt.prompt) if prompt.prompt else _tag("p", "None: an empty text.")]
    figures = {BASE: prompt.base.figures} | {name: found.figures for name, found in prompt.proposals.items()}
    counts = [f"{BASE} {prompt.base.accepted} of {prompt.base.attempts}"]
    counts += [f"{name} {found.accepted} of {found.attempts}" for name, found in prompt.proposals.items()]
    body.append(_figures_table(figures, f"Attempts that satisfy the constraint: {', '.join(counts)}."))
    body += [_tag("p", f"{name}: {note}.", "note") for name, found in prompt.proposals.items() for note in found.notes]
    body += [
        f'<figure><div role="img" aria-label="{_shown(plot.alt)}">{plot.svg}</div>'
        f"{_tag('figcaption', plot.title)}</figure>"
        for plot in plots
    ]
    for name, found in prompt.proposals.items():
        body += _samplers(name, found)
    body.append(_tag("h3", "Texts of g"))
    body += [_tag("pre", text) for text in prompt.base.samples] or [_tag("p", "No attempt of the model gave one.")]
    if prompt.base.self_bleu:
        words = ", ".join(f"n = {n}: {figure}" for n, figure in prompt.base.self_bleu.items())
        body.append(_tag("p", f"Self-BLEU of texts of g: {words}."))
    return body


def _figures_table(figures: Mapping[str, Mapping[str, Estimate]], caption: str) -> str:
    rows = [
        [label, *(_number(of.get(key)) for of in figures.values())]
        for key, label in LABELS.items()
        if any(key in of for of in figures.values())
    ]
    return _table(caption, ["", *figures], rows)


def _samplers(name: str, found: ProposalFigures) -> list[str]:
    if not found.samplers:
        return []
    body = [_tag("h3", f"Samplers with the proposal {name}")]
    head = ["sampler", "attempts a text", "over rejection", "texts", "projected KL [nats]", "KL [nats]", "TVD"]
    rows = [
        [
            _setting(point),
            _number(point.cost),
            f"{point.relative_cost:.3g}",
            f"{point.texts}{' (resampled)' if point.resampled else ''}",
            _number(point.projected_kl),
            _number(found.figures["kl_gold_guarded"] if point.setting is None else point.figures.get("kl")),
            _number(found.figures["tvd_gold_guarded"] if point.setting is None else point.figures.get("tvd")),
        ]
        for point in found.samplers
    ]
    body.append(_table("What every setting costs, and how near to g it comes", head, rows))
    if found.reach:
        reached = [
            [
                reach.sampler.upper(),
                f"{100 * reach.share:g} %",
                f"{_number(reach.cost)} [{_number(reach.low)}, {_number(reach.high)}]",
                f"{reach.paper:g}",
            ]
            for reach in found.reach
        ]
        head = ["sampler", "projected KL that is left", "cost over rejection", "in the paper"]
        body.append(_table("What it takes to come nearer", head, reached))
    diverse = [
        [_setting(point), *(str(figure) for figure in point.self_bleu.values())]
        for point in found.samplers
        if point.self_bleu
    ]
    if diverse:
        body.append(_table("Self-BLEU (high is alike)", ["sampler", *(f"n = {n}" for n in (2, 3, 4, 5))], diverse))
    moves = [
        [_setting(point), *(_number(point.figures.get(key)) for key in ("move_acceptance", "autocorrelation", "r_hat"))]
        for point in found.samplers
        if point.sampler == "imh"
    ]
    head = ["sampler", "moves that moved", "autocorrelation of log-weights, lag 1", "R-hat"]
    return [*body, _table("How chains mix", head, moves)]


def _setting(point: Point) -> str:
    if point.setting is None:
        return "rejection"
    if point.sampler == "qrs":
        return f"QRS, β = {point.setting:.3g}"
    return f"IMH, {point.setting:g} step{'s' if point.setting > 1 else ''}"


def _settings(evaluation: Evaluation) -> list[str]:
    settings = evaluation.settings.model_dump()
    named = {name: settings[name] for name in settings if name != "prompts"}
    rows = {
        **{name: json.dumps(value, ensure_ascii=False) for name, value in named.items()},
        "constraint digest": evaluation.digest,
        "place that texts are compared by": evaluation.place or "none",
        "versions": _versions(evaluation.versions),
        **{f"versions, attempts of {name}": _versions(used) for name, used in evaluation.recorded_with.items()},
    }
    return [
        _tag("h2", "Settings"),
        _list(rows.items()),
        _tag("h2", "How figures were made"),
        _list((name.replace("_", " "), text) for name, text in HOW.items()),
    ]


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _table(caption: str, head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(f'<th scope="col">{_shown(title)}</th>' for title in head)
    lines = "".join(
        f'<tr><th scope="row">{_shown(row[0])}</th>' + "".join(_tag("td", cell) for cell in row[1:]) + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_shown(caption)}">'
        f"<table><caption>{_tag('span', caption)}</caption>\n<thead><tr>{titles}</tr></thead>\n"
        f"<tbody>\n{lines}</tbody></table></div>"
    )


def _list(items: Iterable[tuple[str, str]]) -> str:
    return "<dl>" + "".join(_tag("dt", name) + _tag("dd", text) for name, text in items) + "</dl>"


def _number(figure: Estimate | float | None) -> str:
    if figure is None:
        return _UNKNOWN
    return str(figure) if isinstance(figure, Estimate) else f"{figure:.3g}"


def _tag(name: str, text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<{name}{attribute}>{_shown(text)}</{name}>"


def _shown(text: str) -> str:
    """Escape what HTML would obey, and show what it cannot hold."""
    return escape("".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text))
