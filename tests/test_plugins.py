"""Constraint kinds and samplers of other packages come in through entry points."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from guardwrap.constraints import TextConstraint, View, dump, parse, registry, spec
from guardwrap.errors import ConstraintError, UnknownName, UsageError
from guardwrap.samplers import base, rejection, sampler_named


@dataclass(frozen=True, eq=False, repr=False)
class Shouted(TextConstraint):
    """All in capitals."""

    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["shouted"] = field(default="shouted", kw_only=True)

    def holds(self, text: str) -> bool:
        return text == text.upper()


class Entry:
    def __init__(self, name: str, loaded: Any) -> None:
        self.name, self.value, self.loaded = name, f"elsewhere:{name}", loaded

    def load(self) -> Any:
        return self.loaded


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Any:
    caches = (registry.kinds, spec._adapter, base._samplers)

    def plug(module: Any, name: str, loaded: Any) -> None:
        monkeypatch.setattr(module, "entry_points", lambda group: [Entry(name, loaded)])
        for cached in caches:
            cached.cache_clear()

    yield plug
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()


def test_a_new_kind_is_spelled_in_yaml(plug: Any) -> None:
    plug(registry, "shouted", Shouted)
    file = parse("guardwrap: 1\nconstraint: {kind: not, of: {kind: shouted}}\n")
    assert file.constraint == ~Shouted()
    assert file.constraint.accepts("quiet")
    assert parse(dump(Shouted())).constraint == Shouted()
    with pytest.raises(ConstraintError, match="did you mean 'shouted'"):
        parse("guardwrap: 1\nconstraint: {kind: shoutd}\n")


@pytest.mark.parametrize(("name", "loaded"), [("regex", Shouted), ("new", object)])
def test_a_kind_that_cannot_be_added(plug: Any, name: str, loaded: Any) -> None:
    plug(registry, name, loaded)
    with pytest.raises(ConstraintError, match=f"elsewhere:{name}"):
        registry.kinds()


def test_a_new_sampler(plug: Any) -> None:
    plug(base, "other", rejection._replace(name="other"))
    assert sampler_named("other").name == "other"
    with pytest.raises(UnknownName, match="did you mean 'other'"):
        sampler_named("othr")
    plug(base, "rejection", rejection)
    with pytest.raises(UsageError, match="elsewhere:rejection"):
        sampler_named("rejection")
