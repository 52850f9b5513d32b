"""``guardwrap report``: pages as data, and their HTML, also in a browser."""

import json
import math
import re
import shutil
import subprocess
import sys
from functools import partial
from html import escape, unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from guardwrap.errors import UsageError
from guardwrap.outcomes import Estimate, blocks, charts
from guardwrap.outcomes.blocks import (
    Bar,
    Bars,
    Cloud,
    Curve,
    CurvePoint,
    Curves,
    Heap,
    Level,
    Points,
    SampleText,
    Section,
    Spot,
    Spots,
    Table,
    Text,
    Texts,
)
from guardwrap.outcomes.html import html_report
from guardwrap.outcomes.result_files import read_page, write_page
from tests.cli.fixtures_commands import run as command
from tests.outcomes.fixtures_pages import HOSTILE, Page, a_page, results

ROOT = Path(__file__).parents[2]


run = partial(command, "report")


def page_with(*given):
    return blocks.Page("A page", (Section("A section", given),))


def html_of(*given):
    html = html_report([page_with(*given)])
    return html, Page(html)


def around(value, half=0.1):
    return Estimate(value, value - half, value + half)


# Content and reading of pages.


def test_a_page_reads_back_as_it_was(tmp_path):
    page = a_page()
    write_page(page, tmp_path / "page.json")
    assert read_page(tmp_path / "page.json") == page
    kinds = {block.kind for section in page.sections for block in section.blocks}
    assert kinds == {"text", "note", "table", "curves", "points", "bars", "cloud", "texts"}


def test_null_is_no_bound(tmp_path):
    (tmp_path / "page.json").write_text(
        json.dumps({"title": "t", "sections": [{"title": "s", "blocks": [{
            "kind": "table", "caption": "c", "columns": ["", "a", "b", "c"],
            "rows": [["x", {"value": 1, "low": None, "high": 2}, {"value": None, "low": 2.5, "high": None},
                      {"value": None, "low": None, "high": None}]],
        }]}]})
    )  # fmt: skip
    table = read_page(tmp_path / "page.json").sections[0].blocks[0]
    assert isinstance(table, Table)
    _, one, two, three = table.rows[0]
    assert one == Estimate(1.0, -math.inf, 2.0)
    assert two == Estimate(math.inf, 2.5, math.inf)
    assert isinstance(three, Estimate)
    assert math.isnan(three.value)
    _, page = html_of(read_page(tmp_path / "page.json").sections[0].blocks[0])
    assert [cell for kind, cell in page.kinds if kind == "n"] == ["1 [-∞, 2]", "∞ [2.5, ∞]", "– [-∞, ∞]"]


AT = "sections[0].blocks[0]"


def with_block(kind, **fields):
    return json.dumps({"title": "t", "sections": [{"title": "s", "blocks": [{"kind": kind, **fields}]}]})


def bars(*values):
    return with_block("bars", title="", x="", y="", bins=["a"], series=[{"name": "", "values": values}])


def table(*rows):
    return with_block("table", caption="c", columns=["a"], rows=rows)


def spans(*given):
    return with_block("texts", title="", texts=[{"text": "abc", "spans": given}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON: line 1, column 2"),
        ("", "is not JSON: line 1, column 1"),
        ("[" * 100_000, "is not a file of guardwrap: nested too deeply"),
        ("1" * 5000, "is not a file of guardwrap: "),
        ('{"title": NaN}', "is not a file of guardwrap: NaN is not a JSON number"),
        ('{"title": "a", "title": "b"}', "is not a file of guardwrap: the field 'title' occurs twice"),
        ("[]", "is not a page: "),
        ('{"title": "t"}', "is not a page: the field 'sections' is missing"),
        ('{"title": "t", "sections": [], "style": "x"}', "is not a page: unknown field 'style'"),
        ('{"title": 5, "sections": []}', "is not a page: title: input should be a valid string"),
        (with_block("curve"), f"{AT}: unknown kind 'curve' (did you mean 'curves'?); known: text, note, "),
        (with_block("text", text="x").replace('"kind": "text", ', ""), f"{AT}: the field 'kind' is missing"),
        (with_block("text", text="x", html="y"), f"{AT}: unknown field 'html'"),
        (with_block("note"), f"{AT}: the field 'text' is missing"),
        (table([1], [1, 2]), f"{AT}: row 1 has 2 cells for 1 columns"),
        (table([True]), f"{AT}.rows[0][0]: a cell is a text, a number, null, or {{value, low, high}}"),
        (table([{"value": "1", "low": 0, "high": 2}]), f"{AT}.rows[0][0]: a cell is a text, a number"),
        (bars(), f"{AT}: series 0 has 0 values for 1 bins"),
        (bars(1), f"{AT}.series[0].values[0]: give {{value, low, high}}"),
        (bars({"value": True, "low": 0, "high": 1}), f"{AT}.series[0].values[0]: give {{value, low, high}}"),
        (
            with_block("cloud", title="", series=[{"name": "", "points": [[5, 0]]}]).replace("5", "1e999"),
            f"{AT}.series[0].points[0][0]: give a finite number",
        ),
        (spans([2, 4]), f"{AT}.texts[0]: the span [2, 4] is not inside the text"),
        (spans([0.5, 2]), f"{AT}.texts[0].spans[0][0]: give a whole number"),
    ],
)
def test_what_is_no_page_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "page.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"page\.json' is no") as caught:
        read_page(path)
    assert message in str(caught.value)
    result = run(tmp_path)
    assert result.exit_code == 2
    assert result.stderr == f"guardwrap: {caught.value}\n"
    assert not (tmp_path / "report.html").exists()


def test_a_message_quotes_no_text(tmp_path):
    """A file may contain a text that no constraint has checked."""
    secret = "Rosebud " * 20
    for text in (
        with_block("texts", title="t", texts=[{"text": secret, "spans": [[0, 999]]}]),
        with_block("texts", title="t", texts=secret),
        with_block("table", caption="c", columns=[], rows=[[secret]]),
        with_block("curves", title="t", x="x", y="y", series=[{"name": "n", "points": [secret]}]),
    ):
        (tmp_path / "page.json").write_text(text)
        with pytest.raises(UsageError) as caught:
            read_page(tmp_path / "page.json")
        assert "Rosebud" not in str(caught.value)


def test_the_page_in_the_documentation(tmp_path):
    (example,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "report.md").read_text(), re.DOTALL)
    (tmp_path / "page.json").write_text(example)
    html = html_report([read_page(tmp_path / "page.json")])
    assert "A <mark>dragon</mark>!" in html
    assert "0.3 [0.07,\xa00.65]" in html


# HTML.


def test_nothing_from_a_page_is_obeyed():
    hostile: list[blocks.Block] = [
        Text(HOSTILE, HOSTILE),
        blocks.Note(HOSTILE),
        Table(HOSTILE, (HOSTILE, HOSTILE), ((HOSTILE, HOSTILE),)),
        Curves(HOSTILE, HOSTILE, HOSTILE, (Curve(HOSTILE, (CurvePoint(1, around(1)),)),), levels=(Level(HOSTILE, 1),),
               caption=HOSTILE),
        Points(HOSTILE, HOSTILE, HOSTILE, (Spots(HOSTILE, (Spot(around(1), around(1), HOSTILE),)),)),
        Bars(HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), (Bar(HOSTILE, (around(1),)),)),
        Cloud(HOSTILE, (Heap(HOSTILE, ((0, 0), (1, 1))),)),
        Texts(HOSTILE, (SampleText(HOSTILE, ((0, 8), (5, 20))),), HOSTILE),
    ]  # fmt: skip
    html = html_report([blocks.Page(HOSTILE, (Section(HOSTILE, tuple(hostile)),))] * 2, HOSTILE, [HOSTILE])
    page = Page(html)
    tags = [tag for tag, _ in page.seen]
    assert not {"script", "img", "link", "iframe", "object", "image", "b"} & set(tags)
    assert tags.count("svg") == 2 * tags.count("figure") == 16
    assert not any(name.startswith("on") for _, attributes in page.seen for name in attributes)
    for tag, attributes in page.seen:
        assert not {"src", "xlink:href", "action"} & attributes.keys()
        assert (attributes.get("href", "#") or "").startswith("#")
        drawn = [value or "" for name, value in attributes.items() if name != "aria-label"]
        assert not any(re.search(r"url\((?!#)|https?:", value) for value in drawn), tag
    ids = [attributes["id"] for _, attributes in page.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^")]*)', html)) <= set(ids)
    assert "".join(page.text).count(HOSTILE) > 20


def test_negative_control_a_renderer_that_escapes_nothing(monkeypatch):
    monkeypatch.setattr("guardwrap.outcomes.html._AUTOESCAPE", False)
    html = html_report([page_with(Text("<script>alert(1)</script>"))])
    assert "script" in {tag for tag, _ in Page(html).seen}


def test_marks_are_the_spans():
    _, page = html_of(Texts("t", (SampleText("the <b>cat</b> sat", ((7, 10), (4, 8), (9, 9), (15, 18))),)))
    assert page.marked == ["<b>cat", "sat"]
    assert "".join(page.text).count("the <b>cat</b> sat") == 1


def test_figures_are_told_to_those_who_cannot_see_them():
    curve = Curve("ours", (CurvePoint(100, Estimate(3, 2.5, math.inf)), CurvePoint(50_000, around(1))))
    block = Curves("Learning", "samples", "KL [nats]", (curve,), levels=(Level("a", 4.5),))
    html, page = html_of(block)
    told = "Learning: KL [nats] against samples. ours; a. The figures are in the table below."
    assert [attributes["aria-label"] for tag, attributes in page.seen if attributes.get("role") == "img"] == [told]
    assert "A bar without a cap extends beyond the edge." in html
    cells = "".join(page.text)
    for figure in ("3 [2.5, ∞]", "1 [0.9, 1.1]", "50000", "4.5"):
        assert figure in cells


EMPTY = Curve("nothing", ())
FAR = Estimate(1.0, -math.inf, math.inf)
NOT = Estimate(math.nan, -math.inf, math.inf)


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    [
        Curves("no series", "x", "y", ()),
        Curves("empty", "x", "y", (EMPTY, EMPTY)),
        Curves("one point", "x", "y", (Curve("a", (CurvePoint(0, around(0)),)),)),
        Curves("twice", "x", "y", (Curve("a", (CurvePoint(1, FAR),)), Curve("a", (CurvePoint(1, FAR),)), EMPTY)),
        Curves("logs of nothing", "x", "y", (Curve("a", (CurvePoint(0, around(0)),)),), log_x=True, log_y=True),
        Curves("logs", "x", "y", (Curve("a", (CurvePoint(-1, around(0)), CurvePoint(9, FAR))),), log_x=True,
               log_y=True),
        Curves("far", "x", "y", (Curve("a", (CurvePoint(1e300, Estimate(1e308, -1e308, 1e308)), CurvePoint(1, NOT))),)),
        Curves("tiny", "x", "y", (Curve("a", (CurvePoint(1e-300, Estimate(5e-324, 0, 1)),)),), log_x=True, log_y=True),
        Curves("decades", "x", "y", (Curve("a", (CurvePoint(1e-9, around(1e-9)), CurvePoint(1e9, around(1e9)))),),
               log_x=True, log_y=True),
        Curves("a wrong interval", "x", "y", (Curve("a", (CurvePoint(1, Estimate(1, 2, 0)),)),)),
        Curves("many", "x", "y", (Curve("a", tuple(CurvePoint(i, around(i)) for i in range(60))),) * 15),
        Curves("levels", "x", "y", (), levels=(Level("a", 1.0), Level("b", 1e200), Level("b", -3))),
        Points("far", "x", "y", (Spots("a", (Spot(FAR, FAR), Spot(NOT, FAR), Spot(around(-3), around(2), "x"))),),
               (1, -5, 1e9)),
        Points("none", "x", "y", (Spots("a", ()),), (1.0,)),
        Bars("none", "x", "y", (), (Bar("a", ()),)),
        Bars("some", "x", "y", ("a", "b"), (Bar("a", (NOT, FAR)), Bar("a", (around(-1), around(2))))),
        Bars("many", "x", "y", ("a bin " * 30,) * 90, (Bar("a", (around(1),) * 90),)),
        Cloud("none", (Heap("a", ()),)),
        Cloud("one", (Heap("a", ((1.0, 1.0),)), Heap("a", ()))),
        Cloud("far", (Heap("a", ((1e300, 0.0), (0.0, 0.0))),)),
        Table(None, (), ()),
        Table("none", ("a",), ()),
        Texts("none", ()),
        Texts(
            "odd",
            (SampleText(""), SampleText("\ud800\x00\x1b[31m\r\n", ((0, 3),)), SampleText("\n\nab", ((2, 2), (0, 4)))),
        ),
        Text(""),
    ],
    ids=lambda block: getattr(block, "title", block.kind),
)  # fmt: skip
def test_weird_figures_do_not_break_a_page(block):
    html, page = html_of(block)
    html.encode()
    assert "nan" not in re.sub(r"[^>]*}", "", html)
    drawn = isinstance(block, Curves | Points | Bars | Cloud) and charts.can_be_drawn(block)
    assert ("<svg" in html) == drawn
    if isinstance(block, Curves | Points | Bars | Cloud) and not drawn:
        assert "No data to draw." in page.text


NAMES = [
    "עברית וגם english", "العربية", "हिन्दी বাংলা", "\U0001f469\u200d\U0001f467 \U0001f9ea", "漢字", "_under",
    "$x$ \\frac", "", " ", "a\nb\tc", "long" * 500, "w " * 500, "\u202eevil", "\ud83d half",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_of_every_script(name, tmp_path):
    spots = (Spots(name, (Spot(around(1), around(1), name),)),)
    curves = Curves(name, name, name, tuple(Curve(name, (CurvePoint(i, around(1)),)) for i in range(3)), caption=name)
    given = (
        curves,
        Points(name, name, name, spots),
        Bars(name, name, name, (name, name), (Bar(name, (around(1), around(2))),)),
        Table(name, (name, name), ((name, name),)),
        Texts(name, (SampleText(name),)),
    )
    page = blocks.Page(name, (Section(name, given),))
    write_page(page, tmp_path / "page.json")
    assert read_page(tmp_path / "page.json") == page
    html = html_report([page])
    Page(html)
    assert escape(name.replace("\ud83d", "\ufffd")) in html
    assert charts.png_of(curves).startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_same_figures_give_the_same_file():
    assert html_report([a_page()]) == html_report([a_page()])


# The command.


@pytest.mark.slow
def test_a_folder_with_everything(tmp_path):
    results(tmp_path)
    result = run(tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'report.html'}\n"
    html = (tmp_path / "report.html").read_text()
    page = Page(html)
    text = "".join(page.text)
    titles = [text for tag, text in page.headings if tag == "h2"]
    assert titles[:2] == ["All kinds of blocks", "Proposals and samplers for Regex(pattern='a')"]
    training = [f"Training a proposal for Keyword(words=['{word}'])" for word in ("castle", "dragon")]
    assert titles[2:] == [*training, "A training: stopped"]
    # Of the evaluation: the matched part of a text of g, settings, versions.
    assert page.marked.count("a") >= 5
    for word in ("Theorem 2", "0.4.2", "seed", "versions", "torch 2.13.0", "no-carry"):
        assert word in text
    # Trainings for one g share a chart; the other g has its own.
    alts = [unescape(alt) for alt in re.findall(r'aria-label="([^"]*)"', html)]
    curves = [alt for alt in alts if alt.startswith("Learning curves")]
    assert len(curves) == 3
    assert "other" in curves[0]
    assert "runs/" not in curves[0]
    for name in ("runs/dpg", "runs/sft (by weights)", "the model itself: -log AR"):
        assert name in curves[1]
    assert "6.91" in text
    # Figures with intervals; the draws they were measured on; warnings.
    for word in (
        "0.001 [0.0005, 0.002]", "0.8 [0.7, 0.85]", "1.6 [1.2, ∞]", "1.4 [1, 1.9]", "draws of g",
        "weights of its own draws", "2 [1.5, 2.5]", "50000",
    ):  # fmt: skip
        assert word in text
    notes = [text for kind, text in page.kinds if kind == "note"]
    assert "runs/sft: it has lost part of g" in notes
    assert "runs/sft, round 4: warning 4" in notes
    assert "runs/sft: 2 warnings of earlier rounds are not shown" in notes
    assert any(note.startswith("stopped: interrupted") for note in notes)
    assert "adapter: interrupted" not in text, "the curve beside a card is a copy"
    assert [text for text in page.text if text.strip()][-1].endswith(
        "runs/dpg/curve.jsonl, runs/sft/result.json, stopped/curve.jsonl"
    )


def test_out(tmp_path):
    write_page(a_page(), tmp_path / "page.json")
    target = tmp_path / "elsewhere.html"
    assert run(tmp_path, "--out", target).stdout == f"{target}\n"
    assert Page(target.read_text()).headings[0] == ("h1", "All kinds of blocks")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_errors_of_the_command(tmp_path):
    results(tmp_path / "good")
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    broken = tmp_path / "broken"
    results(broken)
    for arguments, message in (
        (["none"], "'none' is not a folder"),
        ([tmp_path / "file"], "is not a folder"),
        ([tmp_path / "empty"], "there is nothing to report in "),
        ([tmp_path / "good", "--out", tmp_path / "empty"], "cannot write to "),
        ([tmp_path / "good", "--out", tmp_path / "nowhere" / "x.html"], "no such folder"),
    ):
        result = run(*arguments)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.output
        assert message in result.stderr
    dpg = "runs/dpg/result.json"
    for name, change, message in (
        (
            "evaluation.json",
            lambda d: d | {"device": "cpu"},
            "not an evaluation of this version: unknown field 'device'",
        ),
        ("evaluation.json", lambda d: {k: d[k] for k in d if k != "digest"}, "the field 'digest' is missing"),
        ("evaluation.json", lambda d: d | {"prompts": []}, "it has no prompt"),
        (
            "evaluation.json",
            lambda d: d | {"settings": d["settings"] | {"bets": [1]}},
            ": settings: unknown field 'bets'",
        ),
        (dpg, lambda d: d | {"loss": 1}, "is not a training's result of this version: unknown field 'loss'"),
        (dpg, lambda d: d | {"samples": "many"}, "is not a training's result of this version: samples: input should"),
        (dpg, lambda d: [], "is not a training's result of this version: "),
        ("runs/dpg/curve.jsonl", lambda d: d | {"loss": 1}, "curve.jsonl:1' is not a row of a learning curve"),
    ):
        path = broken / name
        before = path.read_text()
        path.write_text(json.dumps(change(json.loads(before.splitlines()[0] if name.endswith("l") else before))))
        result = run(broken)
        path.write_text(before)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.output
        assert message in result.stderr
        assert path.name in result.stderr
    assert run(broken).exit_code == 0, "as they were, they can be read"


def test_without_matplotlib(tmp_path, monkeypatch):
    write_page(a_page(), tmp_path / "page.json")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run(tmp_path)
    assert result.exit_code == 2
    assert result.stderr == "guardwrap: plots need matplotlib: pip install 'guardwrap[plots]'\n"


@pytest.mark.slow
def test_torch_is_not_needed(tmp_path):
    write_page(a_page(), tmp_path / "page.json")
    code = (
        "import sys; from guardwrap.cli.typer_app import app; app(standalone_mode=False); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, "report", tmp_path], check=True, cwd=ROOT)


# In a browser.

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
needs_browser = pytest.mark.skipif(not BROWSER, reason="no Chromium: apt-get install chromium, and these tests run too")


def in_browser(test):
    return pytest.mark.slow(needs_browser(test))


PHONE = 390

MEASURE = """
<!DOCTYPE html><meta charset="utf-8"><style>:root { color-scheme: light dark; } iframe { border: 0; }</style>
<iframe width="%d" height="2000" srcdoc="%s"></iframe><pre id="found"></pre>
<script>
addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument, view = page.defaultView;
  const style = (element, name) => view.getComputedStyle(element)[name];
  const all = (what) => [...page.querySelectorAll(what)];
  const box = (element) => { const found = element.getBoundingClientRect(); return [found.width, found.height]; };
  const inside = (element) => element.closest(".wide, svg, details, pre");
  document.querySelector("#found").textContent = JSON.stringify({
    width: view.innerWidth,
    needed: page.documentElement.scrollWidth,
    beyond: all("body *").filter((e) => !inside(e) && e.getBoundingClientRect().right > view.innerWidth + 0.5)
      .map((e) => e.tagName),
    marks: all("mark").map((e) => [e.textContent, ...box(e), style(e, "backgroundColor"), style(e, "color")]),
    images: all("[role=img]").map((e) => [e.getAttribute("aria-label").length,
      ...box([...e.querySelectorAll("svg")].find((svg) => box(svg)[0] > 0))]),
    letters: all("svg text").map((e) => box(e)[1]).filter((height) => height > 0),
    room: page.querySelector("main").getBoundingClientRect().width,
    overlaps: all("figure svg").flatMap((svg) => {
      const of = [...svg.querySelectorAll("text")].filter((e) => e.textContent.trim() && box(e)[1] > 0);
      const at = of.map((e) => e.getBoundingClientRect());
      const over = (p, q) => Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1
        && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 2;
      return at.flatMap((p, i) => at.slice(0, i).flatMap((q, j) => over(p, q)
        ? [[svg.parentElement.getAttribute("aria-label").slice(0, 40), of[i].textContent, of[j].textContent]] : []));
    }),
    ink: style(page.body, "color"), paper: style(page.body, "backgroundColor"),
    drawn: style(page.querySelector("svg text"), "fill"),
    scripts: page.scripts.length, hacked: Boolean(view.hacked || window.hacked),
    loaded: view.performance.getEntriesByType("resource").length,
  });
});
</script>
"""


def browse(folder, *arguments):
    """Start a separate browser."""
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    command += [f"--user-data-dir={folder / 'profile'}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def measured(path, *arguments, width=PHONE):
    """Show a page in a frame of a phone's width, which is below the minimum of Chromium's window."""
    around_it = path.with_name("measure.html")
    around_it.write_text(MEASURE % (width, escape(path.read_text())))
    dumped = browse(path.parent, *arguments, "--dump-dom", around_it.as_uri())
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', dumped, re.DOTALL)
    return json.loads(unescape(found))


def luminance(colour):
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """Return the contrast ratio of WCAG 2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A report with every kind of block, and with hostile names."""
    folder = tmp_path_factory.mktemp("shown")
    results(folder)
    hard = Curves(HOSTILE, "x", "y", (Curve(HOSTILE, (CurvePoint(1, around(1)),)),), caption="word" * 200)
    table = Table("w" * 300, ("a" * 80, "b"), (("c" * 200, "d" * 300), (HOSTILE, 1)))
    texts = Texts("x" * 200, (SampleText(HOSTILE, ((0, 8),)), SampleText("y" * 3000, ((2990, 3000),))))
    hostile = blocks.Page(HOSTILE, (Section("z" * 300, (hard, table, texts, Text("t" * 500))),))
    (folder / "hostile").mkdir()
    write_page(hostile, folder / "hostile" / "page.json")
    assert run(folder).exit_code == 0
    return folder / "report.html"


@in_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_on_a_phone(shown, dark):
    found = measured(shown, *["--force-dark-mode"] * dark)
    assert found["width"] == PHONE
    assert found["needed"] == PHONE, "nothing sticks out, so the page does not scroll sideways"
    assert found["beyond"] == []
    assert (found["scripts"], found["hacked"], found["loaded"]) == (0, False, 0)
    words = [mark[0] for mark in found["marks"]]
    assert words.count("a") >= 5
    assert all(width > 3 and height > 10 for _, width, height, *_ in found["marks"])
    assert all(contrast(paper, ink) >= 7 for *_, paper, ink in found["marks"])
    assert len(found["images"]) >= 12
    assert all(told > 30 and width > 300 and height > 150 for told, width, height in found["images"])
    assert np.median(found["letters"]) >= 9, "letters of drawings can be read"
    assert contrast(found["ink"], found["paper"]) >= 7
    assert found["drawn"] == found["ink"], "drawings have the page's colour of text"
    assert (luminance(found["paper"]) < 0.05) == dark


@in_browser
def test_negative_control_a_page_that_is_too_wide(shown, tmp_path):
    wide = shown.read_text().replace("overflow-wrap: anywhere", "").replace("overflow-x: auto", "")
    (tmp_path / "report.html").write_text(wide)
    found = measured(tmp_path / "report.html")
    assert found["needed"] > PHONE


@in_browser
@pytest.mark.parametrize("width", [PHONE, 1280])
def test_charts_are_as_wide_as_the_page_and_labels_do_not_overlap(shown, width):
    found = measured(shown, width=width)
    assert found["overlaps"] == []
    assert len(found["images"]) >= 12
    assert all(drawn == pytest.approx(found["room"], abs=1) for _, drawn, _ in found["images"])
    assert found["room"] >= min(width - 40, 900)
    assert 9 <= np.median(found["letters"]) <= 24


@in_browser
def test_negative_control_labels_that_overlap(shown, tmp_path):
    larger = shown.read_text().replace("</style>", "svg text { font-size: 40px !important; }</style>", 1)
    (tmp_path / "report.html").write_text(larger)
    assert measured(tmp_path / "report.html")["overlaps"] != []


@in_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_table_that_goes_on_beyond_the_edge_shows_it(tmp_path, dark):
    def at_the_edge(*cells):
        """Return the gray at the right edge of a tall table, and that of the background."""
        table = Table(None, ("", *("w" * len(cell) for cell in cells)), (("row", *cells),) * 60)
        (tmp_path / "report.html").write_text(html_of(table)[0])
        path = tmp_path / "shot.png"
        size = f"--window-size={PHONE},1200"
        page = (tmp_path / "report.html").as_uri()
        browse(tmp_path, *["--force-dark-mode"] * dark, size, f"--screenshot={path}", page)
        with Image.open(path) as image:
            grey = np.asarray(image.convert("L")).astype(int)
        return np.median(grey[300:, PHONE - 18]), np.median(grey[300:, PHONE - 4])

    edge, paper = at_the_edge(*["12345678"] * 9)
    assert abs(edge - paper) > 40
    edge, paper = at_the_edge("1")
    assert edge == paper, "a negative control: all of it is seen"


@in_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_screenshot(shown, tmp_path, dark):
    """Return the colors of the background, letters and highlighted spans."""
    path = tmp_path / "shot.png"
    size = f"--window-size={PHONE},4000"
    browse(tmp_path, *["--force-dark-mode"] * dark, size, f"--screenshot={path}", shown.as_uri())
    with Image.open(path) as image:
        assert image.size == (PHONE, 4000)
        pixels = np.asarray(image.convert("RGB"))

    def share(*colour):
        return float((pixels == colour).all(axis=2).mean())

    black, white = (0x16, 0x18, 0x1C), (0xE6, 0xE8, 0xEB)
    assert share(*(black if dark else (0xFF, 0xFF, 0xFF))) > 0.5, "paper"
    assert share(*(white if dark else black)) > 1e-3, "letters"
    assert share(0xFF, 0xD8, 0x66) > 1e-4, "marks"
