"""The cost of parsers for a text, for a candidate token and for copying their state, in microseconds of CPU time.

python benchmarks/grammars.py    # needs lark, for comparison
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lark import Lark

from guardwrap.constraints import Grammar, catalogue

TEXT = "1+2*(3.5-4)" + "+2*(3.5-4)" * 100
CANDIDATES = ["+(12", "*7.5", ")", " - 3", "x"] * 16


def seconds(work: Callable[[], object], times: int) -> float:
    start = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - start) / times


def main() -> None:
    constraint = catalogue("arithmetic").constraint
    assert isinstance(constraint, Grammar)
    assert constraint.accepts(TEXT)
    reading, size = constraint.monitor().read(TEXT), len(TEXT)
    assert len(set(reading.verdicts(CANDIDATES))) == 2
    grammar = str(constraint.grammar)
    earley, lalr = Lark(grammar, lexer="dynamic_complete"), Lark(grammar, parser="lalr")
    state = lalr.parse_interactive(TEXT)
    list(state.exhaust_lexer())
    rows = {
        "judging, a character": seconds(lambda: constraint.accepts(TEXT), 50) / size,
        "a verdict on a prefix, a character": seconds(lambda: constraint.verdict(TEXT), 50) / size,
        "the monitor, a token of 4 characters": seconds(lambda: reading.read("+(12").verdict, 500),
        "the monitor, 80 candidates": seconds(lambda: reading.verdicts(CANDIDATES), 50),
        "reading the grammar": seconds(lambda: Grammar(grammar), 20),
        "Lark, Earley, a character": seconds(lambda: earley.parse(TEXT), 3) / size,
        "Lark, LALR(1), a character": seconds(lambda: lalr.parse(TEXT), 10) / size,
        "Lark, LALR(1), keeping the state": seconds(state.copy, 50),
    }
    for what, taken in rows.items():
        print(f"{what:40}{taken * 1e6:10.2f}")


if __name__ == "__main__":
    main()
