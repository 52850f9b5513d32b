"""An endpoint that is a ``guardwrap serve``: texts satisfy the server's constraints and those of the call itself."""

from dataclasses import replace

import pytest

from guardwrap import Endpoint, GuardedGenerator, Prompt, Regex
from guardwrap.errors import EndpointError
from guardwrap.testing import goodness_of_fit
from tests.serve.fixtures_server import Server, furnish, world

WITH_A, WITHOUT_B = Regex("a"), ~Regex("b")
SETTINGS = "model: model\nname: tiny\nconstraints: rules\nallow_code: true\nalways: [has-a]\n"


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    folder = furnish(tmp_path_factory.mktemp("served"))
    (folder / "serve.yaml").write_text(SETTINGS)
    running = Server(folder)
    yield Endpoint(f"{running.url}/v1", model="tiny")
    running.end()


def gold(rule):
    """Return g for texts of two letters."""
    found = {}
    made = replace(world(), prompt="ab", max_new_tokens=2)
    for ids, p in made.gold(rule).items():
        draw = made.draw(ids)
        found[draw.text, draw.finished] = p
    return found


@pytest.mark.slow
def test_both_layers_hold(at):
    """Negative control: the texts are not distributed as with only one of the two constraints."""
    guarded = GuardedGenerator(at, WITHOUT_B, seed=1, batch_size=8)
    (outcome,) = guarded.run("ab", num_return_sequences=100, temperature=1.0, max_new_tokens=2)
    assert all("a" in text and "b" not in text for text in outcome.texts)
    draws = [(draw.text, draw.finished) for draw in outcome.draws]
    assert goodness_of_fit(draws, gold(WITH_A & WITHOUT_B)) > 1e-3
    alone = sum(p for (text, _), p in gold(WITHOUT_B).items() if "a" in text)
    assert goodness_of_fit(["a" in text for text, _ in draws], {True: alone, False: 1 - alone}) < 1e-9
    assert outcome.report.rejections == {WITHOUT_B.title: outcome.report.usage.attempts - 100}


@pytest.mark.slow
def test_it_cannot_weigh(at):
    """The server's texts are drawn from its own g, whose probabilities it cannot report."""
    guarded = GuardedGenerator(at, WITHOUT_B, seed=1, sampler="qrs", proposal=Prompt("b{prompt}"))
    with pytest.raises(EndpointError, match="sampler='rejection'"):
        guarded("ab", temperature=1.0, max_new_tokens=2)
