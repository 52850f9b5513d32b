"""``guardwrap plan``."""

import json

import pytest

from tests.cli.commands import assert_one_line, run

pytestmark = pytest.mark.usefixtures("command_line")


def test_plan(model, has_a):
    args = [
        "plan",
        "ab",
        "cd",
        "-c",
        has_a,
        "--model",
        model,
        "--max-new-tokens",
        8,
        "--pilot",
        40,
        "-n",
        3,
        "--seed",
        1,
    ]
    result = run(*args)
    assert result.exit_code == 0, result.output
    assert "choose sampler='rejection'" in result.stdout
    plan = json.loads(run(*args, "--json", "--proposal", "a{prompt}", "--top-k", 0).stdout)
    assert [forecast["prompt"] for forecast in plan["forecasts"]] == ["ab", "cd"]
    assert all(forecast["texts"] == 3 and forecast["pilot"] == 40 for forecast in plan["forecasts"])
    assert plan["sampler"] in ("qrs", "rejection")
    assert_one_line(run("plan", "ab", "-c", has_a, "--model", model, "--proposal", "a"), "{prompt}")
