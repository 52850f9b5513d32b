"""Seconds that pass with the steps of a backend, so that a limit in seconds binds the same each time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass
class Clock:
    """Stands in for the module ``time``."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


def ticking(monkeypatch: pytest.MonkeyPatch, backend: Any, places: Sequence[Any]) -> Clock:
    """Let a second pass with each step of this kind of backend, in these modules."""
    clock = Clock()
    advance = backend.advance

    def timed(self: Any) -> Any:
        clock.now += 1.0
        return advance(self)

    monkeypatch.setattr(backend, "advance", timed)
    for place in places:
        monkeypatch.setattr(place, "time", clock)
    return clock
