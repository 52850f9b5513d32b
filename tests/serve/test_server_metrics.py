"""Metrics of the server: what a request adds to them, and that clients cannot add names."""

from types import SimpleNamespace

import openai
import pytest

from guardwrap.serve.server_metrics import OTHER_RULES, ServerMetrics
from guardwrap.serve.server_settings import ServerLimits
from tests.serve.fixtures_server import ASKED, HAS_A, figures


def rules(numbers):
    """Return the label ``rule`` of all rejections."""
    return {name.split('"')[1] for name in numbers if name.startswith("guardwrap_rejected_total{")}


def difference(http, ask):
    """Return what a request adds to the metrics."""
    before = figures(http)
    ask()
    return {name: value - before.get(name, 0) for name, value in figures(http).items()}


@pytest.mark.slow
def test_a_request_is_counted_once_under_each_name(client, http):
    reply = client.chat.completions.create(**ASKED, n=3, extra_body={**HAS_A, "seed": 5})
    more = difference(http, lambda: client.chat.completions.create(**ASKED, n=3, extra_body={**HAS_A, "seed": 5}))
    usage, own = reply.guardwrap["usage"], "guardwrap_"
    assert usage["attempts"] > 3
    for name, value in [
        ("attempts_total", usage["attempts"]),
        ("accepted_total", 3),
        ("tokens_total", usage["tokens"]),
        ("computed_tokens_total", usage["computed_tokens"]),
        ("returned_tokens_total", reply.usage.completion_tokens),
        ('rejected_total{rule="has an a"}', usage["attempts"] - 3),
        ('prompts_total{ended="complete"}', 1),
        ("attempts_per_text_count", 1),
        ('requests_total{status="200"}', 1),
        ("request_seconds_count", 1),
    ]:
        assert more[own + name] == value, name
    assert more["guardwrap_attempts_per_text_sum"] == pytest.approx(usage["attempts"] / 3)


@pytest.mark.slow
def test_a_spent_budget_is_counted_by_its_limit(client, http):
    def ask():
        with pytest.raises(openai.UnprocessableEntityError):
            client.chat.completions.create(
                **ASKED, extra_body={"guardwrap": {"constraint": "never", "budget": {"max_attempts": 5}}}
            )

    more = difference(http, ask)
    assert more['guardwrap_prompts_total{ended="max_attempts"}'] == 1
    assert more['guardwrap_rejected_total{rule="has a z"}'] == 5
    assert more['guardwrap_requests_total{status="422"}'] == 1
    assert more["guardwrap_attempts_per_text_count"] == 0


@pytest.mark.slow
def test_clients_cannot_add_names_to_the_metrics(client, http):
    """Each name would be a time series that stays, and could contain a text."""
    known = rules(figures(http))
    secret = {"kind": "regex", "name": "of someone", "pattern": "z"}

    def ask():
        for constraint in (secret, {**secret, "name": "of another"}, {"kind": "regex", "pattern": "zz"}):
            with pytest.raises(openai.UnprocessableEntityError):
                client.chat.completions.create(
                    **ASKED, extra_body={"guardwrap": {"constraint": constraint, "budget": {"max_attempts": 4}}}
                )

    more = difference(http, ask)
    assert more[f'guardwrap_rejected_total{{rule="{OTHER_RULES}"}}'] == 12
    assert rules(more) <= {*known, OTHER_RULES}
    assert "someone" not in http.get("/metrics").text


@pytest.mark.slow
def test_limits_and_the_process_are_shown(http):
    numbers = figures(http)
    assert (numbers["guardwrap_running_max"], numbers["guardwrap_queued_max"]) == (2, 1)
    assert numbers["process_resident_memory_bytes"] > 1e7
    assert numbers["process_cpu_seconds_total"] > 0


@pytest.mark.slow
def test_series_begin_at_zero(http):
    """Otherwise rates miss the first event of each."""
    assert {"has an a", "has a z", "the sampler", OTHER_RULES} <= rules(figures(http))
    live = dict.fromkeys(("running", "queued", "rows_busy"), lambda: 0.0)
    fresh = ServerMetrics("tiny", live, ServerLimits(), ["has an a"])
    numbers = figures(SimpleNamespace(get=lambda _: SimpleNamespace(text=fresh.exposition().decode())))
    for label in ('prompts_total{ended="max_seconds"}', 'requests_total{status="503"}'):
        assert numbers[f"guardwrap_{label}"] == 0
