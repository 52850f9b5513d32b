"""The page of an experiment: results as text, tables and charts for ``guardwrap report``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from textwrap import shorten
from typing import Any

from experiment import ITSELF

from guardwrap.outcomes import Estimate
from guardwrap.outcomes.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Cloud,
    Curve,
    CurvePoint,
    Curves,
    Heap,
    Level,
    Note,
    Page,
    Points,
    SampleText,
    Section,
    Spot,
    Table,
    Text,
    Texts,
    in_words,
)
from guardwrap.outcomes.claims import cost_against_distance

Results = Mapping[str, Any]
"""``results.json`` as ``guardwrap.outcomes.result_files.loads`` reads it, with an ``Estimate`` for each figure."""

_UNITS = ("acceptance_rate", "kl_gold_proposal", "kl_gold_guarded")
_DIVERSITY = (*(f"self_bleu_{n}" for n in (2, 3, 4, 5)), "semantic_similarity")

_NOTATION = (
    "a: the model. b: the constraint. g = a b / Z: the model's texts restricted by the constraint. a': a proposal, "
    "which is the model with a constraint-aware prompt (CAP) or a trained adapter. g' = a' b / Z': the result of "
    "rejection from it. AR: acceptance rate. KL is in nats. Intervals cover 95 %."
)
_HOW = (
    "Samples of g have a separate seed, all methods share them, and no training saw one. A training was planned for "
    "its first budget and continued to the next, so each point is the result of stopping there. If the warm start is "
    "a share of the budget, each budget was trained from scratch. The paper's figures use other models and budgets (a "
    "word: Gemma-2B, 800 000 samples; endings: GPT-2 on ROCStories, 1 500 000): compare orderings, not numbers."
)
_FORCED = (
    "If s never gives part of g, KL(g‖s) itself is infinite. A keyword of several tokens may be half written when s "
    "checks, and any keyword may be written with other tokens. The figure is then restricted to the texts that s can "
    "give. It is -log AR of the model, minus the gain from forcing in the few texts of g that end with the keyword."
)


def page(results: Results) -> Page:
    """Return the page. It leaves out what was not measured, or says that it is missing."""
    sections = [
        _section("What was run", _about(results)),
        _section("The paper's claims", _claims(results)),
        _section("Cost and distance", [_figures(results), *_words(results), *_diagonal(results), *_forcing(results)]),
        _section("Learning", [_curves(results), *_notes(results)]),
        _section("Properties of the texts", _likeness(results)),
        _section("QRS and IMH", _samplers(results)),
        _section("Texts", [_texts(name, texts) for name, texts in results["texts"].items() if texts]),
    ]
    return Page(results["settings"]["title"], tuple(each for each in sections if each.blocks))


def _section(title: str, blocks: Iterable[Block]) -> Section:
    return Section(title, tuple(blocks))


def _table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    return Table(caption, tuple(columns), tuple(map(tuple, rows)))


def _about(results: Results) -> list[Block]:
    settings, gold = results["settings"], results["gold"]
    methods: list[list[Cell]] = [[f"method {name}", _listed(how)] for name, how in settings["methods"].items()]
    rows: list[list[Cell]] = [
        ["model", settings["name"]],
        ["dtype", settings["dtype"] or "that of the stored weights"],
        ["constraint", _listed(settings["constraint"])],
        ["prompts", len(settings["prompts"])],
        ["generation", _listed(settings["generation"])],
        ["seed", settings["seed"]],
        ["samples of each training", ", ".join(map(str, settings["budgets"]))],
        ["of these for the warm start, unless the method says otherwise", settings["warm_samples"] or "a quarter"],
        *methods,
        ["samples of g", f"{len(gold['prompts'])} of {gold['attempts']} attempts of the model itself"],
        ["attempts of each proposal", settings["attempts"]],
        ["embeddings", f"mean last hidden state of {results['embedder']}"],
        ["versions", _listed(results["versions"])],
    ]
    return [Text(_NOTATION), _table("Settings", ["", ""], rows), Note(_HOW)]


def _listed(data: Mapping[str, Any] | str) -> str:
    return data if isinstance(data, str) else ", ".join(f"{name} {value}" for name, value in data.items())


def _claims(results: Results) -> list[Block]:
    found = []
    for each in results["claims"]:
        differences = "; ".join(f"{name}: {in_words(figure)}" for name, figure in each["differences"].items())
        found.append(Text(f"{each['claim']}: {each['verdict']}. {differences or 'Nothing is known'}."))
    note = "A claim holds if the intervals of all its differences are above 0, and does not hold if one is below."
    return [*found, Note(note)]


def _figures(results: Results) -> Block:
    paper = results["settings"]["paper"]
    rows = []
    for name, found in results["proposals"].items():
        told = shorten((found["told"] or "").replace("{prompt}", "…"), 100, placeholder=" …")
        label = f"{name}: {told}" if told else name
        cells = [cell for unit in _UNITS for cell in (found.get(unit), paper.get(name, {}).get(unit))]
        rows.append([label, *cells])
    columns = [cell for name in ("AR", "KL(g‖a')", "KL(g‖g')") for cell in (name, f"{name}, the paper's")]
    caption = f"Trained proposals after {results['settings']['budgets'][-1]} samples. KL is measured on samples of g."
    return _table(caption, ["proposal", *columns], rows)


def _words(results: Results) -> list[Table]:
    trained = {word: what["training"] for word, what in results["keywords"].items() if "training" in what}
    names = ("acceptance_before", "acceptance_after", "kl_gold_proposal", "kl_gold_guarded")
    rows = [[word, what["samples"], *(what["figures"].get(name) for name in names)] for word, what in trained.items()]
    columns = ["keyword", "samples", "AR of the model itself", "AR", "KL(g‖a')", "KL(g‖g')"]
    return [_table("Ours for other keywords", columns, rows)] if rows else []


def _diagonal(results: Results) -> list[Points]:
    spots: dict[str, list[Spot]] = {}
    for name, found in results["proposals"].items():
        if found.get("cost") and found.get("kl_gold_guarded"):
            told = found["told"] is not None
            spot = Spot(found["cost"], found["kl_gold_guarded"], name if told else None)
            spots.setdefault("CAP" if told else name, []).append(spot)
    return [cost_against_distance(spots)] if spots else []


def _forcing(results: Results) -> list[Block]:
    words = {word: what["forcing"] for word, what in results["keywords"].items() if "forcing" in what}
    if not words:
        return []
    paper = results["settings"]["paper"].get("forcing", {}).get("kl")
    rows = [[word, what["tokens"], what["impossible"], what["kl"], paper] for word, what in words.items()]
    columns = ["keyword", "tokens", "share of g that it never gives", "KL(g‖s) over the rest", "KL(g‖s), the paper's"]
    caption = "The sampler s that writes the keyword at the end if it is not there by then"
    return [_table(caption, columns, rows), Note(_FORCED)]


def _curves(results: Results) -> Block:
    series, methods = [], results["settings"]["methods"]
    for name, budgets in results["trainings"].items():
        curves = [what["curve"] for what in budgets.values()]
        rows = [curve[-1] for curve in curves if curve] if "warm_share" in methods[name] else curves[-1]
        if points := tuple(CurvePoint(row["samples"], row["kl_gold"]) for row in rows):
            series.append(Curve(name, points))
    if not series:
        return Note("No KL is known: a prompt has fewer than two samples of g. Use a larger budget.")
    itself = results["proposals"][ITSELF].get("kl_gold_proposal")
    levels = [Level("the model itself", itself.value)] if itself else []
    known = {name: each.get("kl_gold_proposal") for name, each in results["proposals"].items() if each["told"]}
    best = min((name for name in known if known[name]), key=lambda name: known[name].value, default=None)
    levels += [Level(f"{best}, the closest prompt", known[best].value)] if best else []
    return Curves(
        "KL(g‖a') against samples",
        "samples",
        "KL(g‖a') [nats]",
        tuple(series),
        levels=tuple(levels),
        caption="After each round, or each budget if it is trained from scratch, on the same samples of g.",
    )


def _notes(results: Results) -> list[Block]:
    last = {name: list(budgets.values())[-1] for name, budgets in results["trainings"].items()}
    return [
        Note(f"{name}: {note}") for name, what in last.items() for note in what["notes"] if note.startswith("warning")
    ]


def _likeness(results: Results) -> list[Block]:
    paper, found = results["settings"]["paper"], results["diversity"]
    rows = []
    for name, own in found["groups"].items():
        theirs = paper.get(f"texts of {'CAP' if name.startswith('CAP') else name}", {})
        rows.append([name, *(cell for figure in _DIVERSITY for cell in (own.get(figure), theirs.get(figure)))])
    names = [*(f"Self-BLEU {n}" for n in (2, 3, 4, 5)), "similarity"]
    columns = ["texts of", *(cell for name in names for cell in (name, "the paper's"))]
    of = f"of {found['k']} texts each (the paper: 100)" if found["k"] else "left out: under 50 texts, or no sacrebleu"
    caption = f"Self-BLEU from 0 to 100, {of}; similarity: mean cosine of embeddings. High means similar."
    blocks: list[Block] = [_table(caption, columns, rows)]
    bins = tuple(f"{i / 10:.1f}" for i in range(10))
    for word, what in results["keywords"].items():
        series = tuple(Bar(name, tuple(values)) for name, values in what["positions"].items())
        own = f" Ours after {what['training']['samples']} samples." if "training" in what else ""
        caption = f"First occurrence, in characters.{own}"
        title = f"Where “{word}” occurs"
        blocks.append(Bars(title, "relative position, from", "share of texts", bins, series, caption))
    if results["sentences"]:
        most = min(len(values) for values in results["sentences"].values())
        series = tuple(Bar(name, tuple(values[:most])) for name, values in results["sentences"].items())
        bins = tuple(str(i + 1) for i in range(most))
        blocks.append(Bars("Positivity by sentence", "sentence", "mean probability of the label", bins, series))
    if results["cloud"]:
        heaps = tuple(Heap(name, tuple(map(tuple, points))) for name, points in results["cloud"].items())
        blocks.append(Cloud("Texts in a plane: UMAP of their embeddings", heaps))
    else:
        blocks.append(Note("No UMAP: too few texts, or no umap-learn (pip install 'guardwrap[paper]')."))
    return blocks


def _samplers(results: Results) -> list[Block]:
    found = results["samplers"]
    if not found or not found["samplers"]:
        return []
    points = [point for point in found["samplers"] if point["projected_kl"]]
    series = [
        Curve(name.upper(), tuple(CurvePoint(point["relative_cost"], point["projected_kl"]) for point in curve))
        for name in ("qrs", "imh")
        if len(curve := [point for point in points if point["sampler"] in ("rejection", name)]) > 1
    ]
    chart = Curves(
        "Samplers over our adapter",
        "cost over rejection",
        "projected KL to g [nats]",
        tuple(series),
        log_x=True,
        log_y=True,
        caption="KL between the distributions over ten bins of the keyword's position, a lower bound (App. G).",
    )
    rows = [
        [reach["sampler"].upper(), f"{100 * reach['share']:g} %", _reached(reach), reach["paper"]]
        for reach in found["reach"]
    ]
    columns = ["sampler", "remaining projected KL", "cost over rejection", "the paper's"]
    tables = [_table("The cost of coming closer", columns, rows)] if rows else []
    return [chart, *tables, *(Note(note) for note in found["notes"])]


def _reached(reach: Mapping[str, Any]) -> Estimate | None:
    """Return a cost, with the costs at which the lower and upper ends of the curve get that far."""
    if reach["cost"] is None or not math.isfinite(reach["cost"]):
        return None
    low, high = (math.inf if reach[end] is None else reach[end] for end in ("low", "high"))
    return Estimate(reach["cost"], low, high)


def _texts(name: str, texts: Sequence[Mapping[str, Any]]) -> Texts:
    samples = tuple(SampleText(text["text"], tuple(map(tuple, text["spans"]))) for text in texts)
    return Texts("Texts of g" if name == "g" else f"Texts of g' by {name}", samples)
