"""Tasks of lm-evaluation-harness over ``guardwrap serve``: its own client is enough."""

from pathlib import Path

import pytest
import torch

from guardwrap.testing import table_world
from tests.serve.fixtures_agents import NAME, running_server

TASKS = Path(__file__).parents[2] / "benchmarks" / "lm_eval"


@pytest.fixture(scope="module")
def server():
    # Its table has a place for each token of a prompt; transformers looks for stop strings with these letters.
    world = table_world(letters="12 AB.abcdef:\n", max_new_tokens=600)
    with torch.no_grad():  # texts such as " A" and "1." are not rare
        for before, after in (*(("\n:", after) for after in " 1"), (" ", "A"), ("A", ""), ("1", "."), (".", "")):
            rows, (column,) = world.tokenizer(before)["input_ids"], world.tokenizer(after)["input_ids"] or [0]
            world.model.table[:, rows, column] += 4
    with running_server(world, constraints=str(TASKS / "rules")) as url:
        yield url


@pytest.mark.parametrize(("task", "rule"), [("sums", "number"), ("choice", "letter")])
@pytest.mark.parametrize("way", [{}, {"proposal": "masked"}, None])
def test_every_answer_has_its_format(server, monkeypatch, task, rule, way):
    # "lm_eval" alone is also the folder in benchmarks.
    pytest.importorskip("lm_eval.tasks", reason="lm-evaluation-harness is not installed; see `make test-lm-eval`")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    local = {"base_url": f"{server}/completions", "model": NAME, "tokenizer_backend": "none"}
    results = simple_evaluate(
        "local-completions",
        model_args={**local, "tokenized_requests": False},
        tasks=[task],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        gen_kwargs={"max_gen_toks": 8, **({} if way is None else {"guardwrap": {"constraint": rule, **way}})},
        limit=12,
    )
    accepted = results["results"][task]["accepts,none"]
    assert accepted < 1 if way is None else accepted == 1
