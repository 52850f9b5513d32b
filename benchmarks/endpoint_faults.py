"""The effect of a broken network on texts from an endpoint, with injected faults.

    PYTHONPATH=. python benchmarks/endpoint_faults.py

The server is the one of the tests, whose distribution is enumerated, so that texts are compared with g itself. An
attempt is lost if it was launched and never ended, and doubled if it ended twice. The last two rows are negative
controls: a server whose seeds do not repeat, and attempts that count as rejected when they break.
"""

import argparse
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import guardwrap.calls.source
from guardwrap import Budget, GuardedGenerator
from guardwrap.engine.endpoint import request_faults
from guardwrap.testing import goodness_of_fit
from tests.engine.endpoint.fixtures_server import Server, endpoint, of_world
from tests.engine.endpoint.test_endpoint_backend import LAW, RULE, WORLD, Drops, counting, gold

SEED = 5


@contextmanager
def restarted(server: Server, seconds: float) -> Iterator[None]:
    """Stop the server and start it again, at random moments, so many seconds apart at most."""
    over, chance = threading.Event(), random.Random(0)

    def often() -> None:
        while not over.wait(chance.uniform(0.2, 1) * seconds):
            server.stop()
            server.count["restarts"] += 1
            over.wait(0.05)
            server.start()

    thread = threading.Thread(target=often)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def row(name: str, count: int, change: Callable[[Server], None], *, restarts: bool = False) -> None:
    """Draw so many texts while something breaks, and print what came of it."""
    with Server(of_world(WORLD)).running() as server:
        change(server)
        guarded = GuardedGenerator(endpoint(server), RULE, budget=Budget(max_attempts=None), seed=SEED)
        with counting() as (launched, ended), restarted(server, 2 if restarts else 1e9):
            (outcome,) = guarded.run("a", num_return_sequences=count, **LAW)
        usage, report = outcome.report.usage, outcome.report
        fit = goodness_of_fit([(draw.text, draw.finished) for draw in outcome.draws], gold())
        injected = {what: server.count[what] for what in ("broken", "failed", "restarts") if server.count[what]}
    print(
        f"{name:34} {injected or 'nothing'!s:44} texts {report.accepted}/{count}  attempts {usage.attempts}  "
        f"lost {(launched - ended).total()}  doubled {sum(times > 1 for times in ended.values())}  p {fit:.2g}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each kind of fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=5000)
    count = parser.parse_args(arguments).texts
    with patch.object(request_faults, "_FIRST", 0.002):  # seconds between tries: it is not waiting that is measured
        row("nothing", count, lambda server: None)
        row("streams that break", count, lambda server: setattr(server, "breaks", 0.1))
        row("429 and 503", count, lambda server: setattr(server, "fails", 0.2))
        row("a server that restarts", count, lambda server: None, restarts=True)

        def all_of_it(server: Server) -> None:
            server.breaks, server.fails = 0.05, 0.1

        row("all of these", count, all_of_it, restarts=True)

        def without_seeds(server: Server) -> None:
            server.breaks, server.honours_seeds = 0.4, False

        row("control: seeds that do not repeat", count // 8, without_seeds)
        with patch.object(guardwrap.calls.source, "EndpointBackend", Drops):
            row("control: breaks count as rejected", count // 8, lambda server: setattr(server, "breaks", 0.4))


if __name__ == "__main__":
    main()
