"""A folder with results of every kind, and a strict reader of HTML pages."""

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal

from guardwrap import Regex
from guardwrap.evaluation.evaluation_run import evaluate
from guardwrap.evaluation.evaluation_settings import EvaluationSettings
from guardwrap.outcomes import Estimate, blocks, plain
from guardwrap.outcomes.blocks import (
    Bar,
    Bars,
    Cloud,
    Curve,
    CurvePoint,
    Curves,
    Heap,
    Level,
    Note,
    Points,
    SampleText,
    Section,
    Spot,
    Spots,
    Table,
    Text,
    Texts,
)
from guardwrap.outcomes.result_files import write_page
from guardwrap.training import TrainingSettings as Training
from guardwrap.training.learning_curve import Row
from tests.evaluation.fixtures_recordings import Source, placed

HOSTILE = '<script>hacked = 1</script></svg></style><img src=x onerror="hacked = 1"> & \' ]]> --> url(http://x) $x$ _'
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """A parser that rejects pages that are not well formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.marked: list[str] = []
        self.headings: list[tuple[str, str]] = []
        self.kinds: list[tuple[str | None, str]] = []  # class and text of each element
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert len(dict(attributes)) == len(attributes), f"<{tag}> says something twice"
        self.seen.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert "svg" in self.open, "HTML has no elements that end themselves"
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        data = data.replace("\xa0", " ")  # keeps an interval on one line
        self.text.append(data)
        if self.open:
            if self.open[-1] == "mark":
                self.marked.append(data)
            if self.open[-1] in ("h1", "h2", "h3"):
                self.headings.append((self.open[-1], data))
            if data.strip():
                self.kinds.append((self.seen[-1][1].get("class"), data))


def about(value: float, share: float = 0.2) -> Estimate:
    return Estimate(value, value * (1 - share), value * (1 + share))


def a_page() -> blocks.Page:
    """Return a page with every kind of block."""
    points = tuple(CurvePoint(1000.0 * i, about(6 / i)) for i in range(1, 6))
    open_end = (*points[:-1], CurvePoint(5000.0, Estimate(1.3, 0.4, float("inf"))))
    rates = (("a", about(0.25), 50000, "rare"), ("CAP", Estimate(1.0, 0.9, 1.0), None, ""))
    learning = (Curve("DPG", points), Curve("warm start", open_end))
    near, far = Spot(about(0.7), about(0.5), "final"), Spot(about(0.1), about(3))
    first, last = (about(0.7), about(0.2), about(0.1)), (about(0.2), about(0.3), about(0.5))
    grid = tuple((float(i % 7), float(i % 5)) for i in range(35))
    given = (
        Text("Ours beside the paper's.\nA second line."),
        Note("Few draws: the intervals are wide.", "Beware"),
        Table("Rates", ("method", "AR", "samples", "in words"), rates),
        Curves("Learning", "samples", "KL(g‖a') [nats]", learning, levels=(Level("the model itself", 6.5),)),
        Curves("Falling", "cost", "KL [nats]", (Curve("QRS", points),), log_x=True, log_y=True, caption="Low is good."),
        Points(
            "Diagonal", "-log AR [nats]", "KL(g‖g') [nats]", (Spots("DPG", (near,)), Spots("CAP", (far,))), (1.0, 3.0)
        ),
        Bars("The word's place", "place", "share", ("first", "middle", "last"), (Bar("g", last), Bar("CAP", first))),
        Cloud("Embeddings", (Heap("g", grid), Heap("CAP", ((1.5, 2.5), (2.5, 3.5)))), "UMAP"),
        Texts(
            "Texts of g",
            (SampleText("Once there was an amazing dragon.", ((18, 25),)), SampleText("מדהים 🐉", ((0, 5),))),
        ),
    )
    return blocks.Page("All kinds of blocks", (Section("Words and figures", given),))


def results(folder: Path) -> None:
    """Fill a folder: a page, an evaluation, trainings for two constraints, one of them interrupted."""
    folder.mkdir(parents=True, exist_ok=True)
    write_page(a_page(), folder / "page.json")
    settings = EvaluationSettings(
        constraint="x", prompts=["Tell me."], proposals={"no-carry": "{prompt}"}, attempts=120, steps=[1]
    )
    evaluate(Source(placed()), settings, Regex("a"), folder)
    for name in ("report.html", "cost.png", "positions.png", "tradeoff.png"):
        (folder / name).unlink()
    _training(folder / "runs" / "dpg", "dragon", "dpg", on_gold=True)
    _training(folder / "runs" / "sft", "dragon", "sft", on_gold=False, warnings=5)
    _training(folder / "other", "castle", "replay", on_gold=True)
    (folder / "runs" / "sft" / "curve.jsonl").unlink()
    (folder / "stopped").mkdir()
    _curve(folder / "stopped", _rows(True, 0))
    (folder / "runs" / "dpg" / "adapter").mkdir()
    _curve(folder / "runs" / "dpg" / "adapter", _rows(True, 0))
    (folder / "runs" / "dpg" / "adapter" / "card.yaml").write_text("")


def _rows(on_gold: bool, warnings: int) -> list[Row]:
    return [
        Row(i, "policy", 10_000 * (i + 1), 300_000 * (i + 1), 9.5 * i, about(0.1 * (i + 1)), 1000, about(50.0), 0.001,
            about(4 - 0.5 * i), 0.001, 2.5, about(3 - 0.4 * i) if on_gold else None, 20,
            [f"warning {i}"] if i < warnings else [])
        for i in range(5)
    ]  # fmt: skip


def _curve(folder: Path, rows: list[Row]) -> None:
    (folder / "curve.jsonl").write_text("".join(json.dumps(row.to_dict()) + "\n" for row in rows))


def _training(
    folder: Path, word: str, method: Literal["replay", "dpg", "sft"], *, on_gold: bool, warnings: int = 0
) -> None:
    folder.mkdir(parents=True)
    rows = _rows(on_gold, warnings)
    _curve(folder, rows)
    measured = Estimate(1.6, 1.2, float("inf"))
    weighted = Estimate(2, 1.5, 2.5) if on_gold else measured
    figures = {
        "acceptance_before": Estimate(0.001, 0.0005, 0.002),
        "acceptance_after": Estimate(0.8, 0.7, 0.85),
        "kl_gold_proposal": measured,
        "kl_gold_guarded": Estimate(1.4, 1.0, 1.9),
        "weighted_kl_gold_proposal": weighted,
        "weighted_kl_gold_guarded": about(1.2),
    }
    settings = Training(constraint={"kind": "keyword", "words": [word]}, prompts=[""], method=method, name="tiny/llama")
    notes = ["KL is measured on 300 draws of g among 20000 attempts of the model"]
    notes += ["warning: it has lost part of g"] if warnings else []
    result = {
        "folder": "adapter", "figures": plain(figures), "samples": 50_000, "tokens": 1_500_000, "seconds": 312.5,
        "curve": [row.to_dict() for row in rows], "notes": notes, "settings": settings.model_dump(mode="json"),
        "versions": {"guardwrap": "0.4.2", "torch": "2.13.0"},
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
