"""Jobs on a real Ray: any number of workers, killed or not, gives the same records. `make test-ray` installs Ray."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from guardwrap.testing import table_world
from tests.engine.endpoint.fixtures_server import Server, of_world

ray = pytest.importorskip("ray", reason="Ray is not installed; see `make test-ray`")
pa = pytest.importorskip("pyarrow")

ROOT = Path(__file__).parents[3]
RULE = "guardwrap: 1\nconstraint: {kind: regex, name: has an a, pattern: a}\n"
COSTS = ("seconds", "surplus_attempts", "surplus_tokens", "computed_tokens")

pytestmark = pytest.mark.filterwarnings("ignore")  # from Ray and its dependencies


def command(model, *args):
    return [
        *(sys.executable, "-W", "ignore", "-m", "guardwrap", "generate", "-m", model, "-c", "c.yaml", "--top-k", "0"),
        *("--max-new-tokens", "6", "--seed", "1", *map(str, args)),
    ]


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def generate(model, *args):
    return subprocess.run(command(model, *args), env=environment(), capture_output=True, text=True, check=False)


def records(path):
    found = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for record in found:
        for cost in COSTS:
            record.get("report", {}).get("usage", {}).pop(cost, None)
        record.get("report", {}).pop("checksum", None)
    return found


@pytest.fixture
def rows(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(RULE)
    lines: list[dict[str, Any]] = [{"id": f"row-{number}", "prompt": f"ab{number} "} for number in range(40)]
    lines[3] |= {"constraint": {"kind": "regex", "pattern": "b"}, "seed": 7}
    lines[5] = {"id": "row-5", "messages": [{"role": "user", "content": "ab"}]}  # the model has no chat template
    lines[7] |= {"constraint": {"kind": "regex", "pattern": "Z"}, "budget": {"max_attempts": 3}}
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


def test_any_number_of_workers_gives_the_same_records(model, rows):
    for workers in (1, 2):
        result = generate(
            model, "--jsonl", "in.jsonl", "-o", f"out{workers}", "--ray", "auto", "--workers", workers, "-q"
        )
        assert result.returncode == 3, result.stderr
        assert result.stdout == ""
        assert len(result.stderr.splitlines()) == 1
        assert "2 of 40 rows did not get all their texts; out" in result.stderr
    one, two = records("out1/results.jsonl"), records("out2/results.jsonl")
    assert one == two
    assert [record["id"] for record in one] == [row["id"] for number, row in enumerate(rows) if number not in (5, 7)]
    assert all("a" in record["texts"][0] for record in one)
    assert "b" in one[3]["texts"][0]
    failed = records("out2/failed.jsonl")
    assert [record["id"] for record in failed] == ["row-5", "row-7"]
    assert "chat template" in failed[0]["reason"]
    assert failed[1]["reason"].startswith("ended by max_attempts")
    # Again: nothing is left to do. Then a retry of the failed rows, with another seed and another budget.
    before = Path("out2/results.jsonl").read_bytes()
    assert generate(model, "--jsonl", "in.jsonl", "-o", "out2", "--ray", "auto", "--resume").returncode == 3
    assert Path("out2/results.jsonl").read_bytes() == before
    Path("c.yaml").write_text(RULE.replace("pattern: a", "pattern: b"))
    other = generate(model, "--jsonl", "in.jsonl", "-o", "out2", "--ray", "auto", "--resume")
    assert other.returncode == 2
    assert "was made with another constraint; resume with the same" in other.stderr
    Path("c.yaml").write_text(RULE)
    again = command(model, "--jsonl", "in.jsonl", "-o", "out2", "--ray", "auto", "--resume", "--retry-failed")
    again[again.index("--seed") + 1] = "2"
    assert subprocess.run(again, env=environment(), check=False, capture_output=True).returncode == 3
    assert records("out2/failed.jsonl")[1]["report"]["seed"] == 2
    assert records("out2/failed.jsonl")[1]["report"]["settings"]["drawn_again"] == 1
    assert Path("out2/results.jsonl").read_bytes() == before


def test_workers_may_draw_from_an_endpoint(rows, monkeypatch):
    """The key comes from the environment and is in no file; broken streams change no text."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-7")
    with Server(of_world(table_world(3, letters="ab", max_new_tokens=6)), key="sk-very-secret-7").running() as server:
        given = ["--endpoint", server.url, "--jsonl", "in.jsonl", "--ray", "auto", "-q"]
        rows[:] = [{"id": f"row-{number}", "prompt": "ab"[number % 2]} for number in range(70)]
        Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for workers, server.breaks in ((1, 0.0), (2, 0.05)):
            done = generate("table", *given, "-o", f"out{workers}", "--workers", workers)
            assert (done.returncode, done.stderr) == (0, "")
        assert server.count["broken"] > 3
    one, two = ([(each["id"], each["texts"]) for each in records(f"out{n}/results.jsonl")] for n in (1, 2))
    assert one == two
    assert [name for name, _ in one] == [row["id"] for row in rows]
    assert not any("sk-very" in path.read_text() for path in Path().rglob("*.json*"))


def family(pid):
    found, todo = [], [pid]
    while todo:
        for entry in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            children = [int(each) for each in entry.read_text().split()]
            found += children
            todo += children
    return found


def named(pid, name):
    try:
        return name in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def wait_for(there, process):
    while not there() and process.poll() is None:
        time.sleep(0.05)


def test_a_worker_and_a_driver_that_are_killed(model, rows):
    lines = [{"id": number, "prompt": f"ab{number} "} for number in range(2000)]
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ("--jsonl", "in.jsonl", "--ray", "auto", "-q")
    calm = generate(model, *given, "-o", "calm")
    assert calm.returncode == 0, calm.stderr
    process = subprocess.Popen(command(model, *given, "-o", "out", "--workers", 2), env=environment())
    wait_for(lambda: any(Path("out/parts").glob("*.jsonl")), process)
    workers = [each for each in family(process.pid) if named(each, "LineWorker")]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    there = len(list(Path("out/parts").glob("*.jsonl")))
    wait_for(lambda: len(list(Path("out/parts").glob("*.jsonl"))) > there + 3, process)
    assert process.poll() is None
    process.kill()
    process.wait()
    assert not Path("out/results.jsonl").exists()
    done = len(list(Path("out/parts").glob("*.jsonl")))
    assert done > 3
    resumed = generate(model, *given, "-o", "out", "--workers", 2, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert records("out/results.jsonl") == records("calm/results.jsonl")


def test_parquet_holds_the_same_rows(model, rows):
    import pyarrow.parquet

    del rows[5:8]
    columns = ("id", "prompt", "constraint", "seed")
    table = pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows])
    pyarrow.parquet.write_table(table, "in.parquet")
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("jsonl", "parquet"):
        result = generate(model, f"--{name}", f"in.{name}", "-o", name, "--ray", "auto")
        assert result.returncode == 0, result.stderr
    assert records("jsonl/results.jsonl") == records("parquet/results.jsonl")


@pytest.fixture(scope="module")
def ray_here():
    from guardwrap.integrations.ray.ray_job import connected

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # for the workers
        with connected("auto", 2) as there:
            yield there


def test_a_dataset_gets_the_texts_of_its_rows(model, rows, ray_here):
    from guardwrap import Regex
    from guardwrap.calls.prompts import Item
    from guardwrap.constraints.files.constraint_file import PerPromptOptions
    from guardwrap.errors import UsageError
    from guardwrap.integrations.ray import map_prompts
    from guardwrap.integrations.ray.ray_job import Recipe, Worker
    from guardwrap.integrations.ray.rows import numbered

    del rows[3]["seed"], rows[7]["budget"], rows[7]["constraint"]
    table = pa.Table.from_pylist([{name: row.get(name) for name in ("id", "prompt", "constraint")} for row in rows])
    options = {"max_new_tokens": 6, "top_k": 0}
    rule = Regex("a", name="has an a")

    def drawn(table, **more):
        dataset = ray_here.data.from_arrow(table).repartition(4)
        return map_prompts(dataset, model, rule, seed=1, options=options, **more)

    in_two = [drawn(table.slice(0, 10)), drawn(table.slice(10), workers=2)]
    drawn_rows = {row["id"]: row for part in in_two for row in part.take_all()}
    one = Worker(Recipe(model, rule, {}, {**options, "seed": 1}))
    own = {3: PerPromptOptions(Regex("b"))}
    given = numbered(Item("here", row, own.get(number, PerPromptOptions())) for number, row in enumerate(rows))
    expected = {record["id"]: record["texts"] for record, ok in one.records(list(given)) if ok}
    assert len(expected) == 39
    assert {name: row["texts"] for name, row in drawn_rows.items() if row["ok"]} == expected
    (failed,) = (row for row in drawn_rows.values() if not row["ok"])
    assert failed["id"] == "row-5"
    assert "give an object with either" in failed["reason"]
    twice = ray_here.data.from_arrow(pa.concat_tables([table, table.slice(3, 1)]))
    with pytest.raises(UsageError, match='the id "row-3" occurs twice'):
        map_prompts(twice, model, rule, seed=1)
    with pytest.raises(UsageError, match='needs a column "id"'):
        map_prompts(ray_here.data.from_arrow(table.drop_columns(["id"])), model, rule, seed=1)
    misspelt: dict[str, Any] = {"worker": 2}
    with pytest.raises(UsageError, match="did you mean 'workers'"):
        map_prompts(twice, model, rule, seed=1, **misspelt)
