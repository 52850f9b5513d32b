"""Old names of modules and members lead to the new ones, with a warning."""

import importlib
import sys
import warnings

import pytest

from guardwrap.environment.moved_names import MODULES, NAMES

OPTIONAL = {"ray"}  # not installed with the other packages


def old_member(name: str) -> object:
    """Return what an old name stands for, as ``from module import member`` does."""
    module, _, member = name.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(importlib.import_module(f"guardwrap.{module}"), member)


def new_member(name: str) -> object:
    module, _, member = name.rpartition(".")
    return getattr(importlib.import_module(f"guardwrap.{module}"), member)


@pytest.mark.parametrize("old", [name for name in NAMES if name.split(".")[0] not in OPTIONAL])
def test_each_old_name_is_the_new_member(old: str) -> None:
    assert old_member(old) is new_member(NAMES[old])


@pytest.mark.parametrize("old", [name for name in MODULES if name.split(".")[0] not in OPTIONAL])
def test_each_old_module_gives_the_members_of_the_new_one(old: str) -> None:
    new = importlib.import_module(f"guardwrap.{MODULES[old]}")
    unmoved = [name for name in getattr(new, "__all__", []) if f"{old}.{name}" not in NAMES]
    for name in unmoved:
        assert old_member(f"{old}.{name}") is getattr(new, name)


def test_a_module_and_a_member_warn_with_their_new_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "guardwrap.draws", raising=False)
    with pytest.warns(DeprecationWarning, match="deprecated") as caught:
        from guardwrap.draws import Budget  # type: ignore[import-untyped]
    assert Budget().max_attempts
    assert [str(warning.message) for warning in caught] == [
        "guardwrap.draws is deprecated; use guardwrap.outcomes",
        "guardwrap.draws.Budget is deprecated; use guardwrap.budget.Budget",
    ]
    assert {warning.filename for warning in caught} == {__file__}


def test_a_module_that_remains_knows_the_old_name_of_a_member() -> None:
    with pytest.warns(DeprecationWarning, match=r"^guardwrap.planning.Plan is deprecated; use guardwrap.planning.plan"):
        from guardwrap.planning import Plan  # type: ignore[attr-defined]
    assert Plan.__module__ == "guardwrap.planning.plan"


@pytest.mark.parametrize("module", ["guardwrap.draws", "guardwrap.planning", "guardwrap.scheduling.backend"])
def test_a_name_that_never_was_is_an_attribute_error(module: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = importlib.import_module(module)
    with pytest.raises(AttributeError, match=f"^module '{module}' has no attribute 'nothing'$"):
        _ = found.nothing


def test_new_names_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        for module in sorted(set(MODULES.values())):
            if module.split(".")[0] not in OPTIONAL:
                importlib.import_module(f"guardwrap.{module}")
