"""Guaranteed generation for Hugging Face models.

Every text satisfies your constraints, and is drawn from the model's own distribution conditioned on them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guardwrap.budget import Budget
    from guardwrap.calls.estimates import Forecast
    from guardwrap.calls.missing_texts import Fallback, Repair
    from guardwrap.calls.plan import Plan
    from guardwrap.constraints import (
        Arithmetic,
        Case,
        Classifier,
        Code,
        Constraint,
        Copy,
        Count,
        Depth,
        Edges,
        Entails,
        Finished,
        Grammar,
        JSONSchema,
        Judge,
        Keyword,
        Language,
        Length,
        NoCopy,
        NumbersFrom,
        OneOf,
        OnlyFrom,
        Order,
        Parses,
        Part,
        PersonalData,
        Quotes,
        Readability,
        Regex,
        Secrets,
        Share,
        Similar,
        Split,
        ToolCalls,
        Values,
        Verdict,
        catalogue,
        constraint,
    )
    from guardwrap.engine.endpoint.server import Endpoint
    from guardwrap.errors import BudgetExhausted, CheckFailed, GuardwrapError
    from guardwrap.generator import GuardedGenerator
    from guardwrap.models.embedded_model import load_local
    from guardwrap.outcomes import Draw, Estimate, Outcome, Report, Usage
    from guardwrap.proposals import Adapter, Masked, Prompt, Twisted
    from guardwrap.samplers import auto, imh, qrs

__version__ = "0.2.0"

_WHERE = {
    "BudgetExhausted": "errors",
    "CheckFailed": "errors",
    "GuardwrapError": "errors",
    "Budget": "budget",
    "Draw": "outcomes",
    "Estimate": "outcomes",
    "Outcome": "outcomes",
    "Report": "outcomes",
    "Usage": "outcomes",
    "Endpoint": "engine.endpoint.server",
    "Fallback": "calls.missing_texts",
    "Repair": "calls.missing_texts",
    "GuardedGenerator": "generator",
    "load_local": "models.embedded_model",
    "Forecast": "calls.estimates",
    "Plan": "calls.plan",
    "Adapter": "proposals",
    "Masked": "proposals",
    "Prompt": "proposals",
    "Twisted": "proposals",
    "auto": "samplers",
    "imh": "samplers",
    "qrs": "samplers",
}
"""Where public names are. All others are in ``constraints``."""

__all__ = [
    "Adapter",
    "Arithmetic",
    "Budget",
    "BudgetExhausted",
    "Case",
    "CheckFailed",
    "Classifier",
    "Code",
    "Constraint",
    "Copy",
    "Count",
    "Depth",
    "Draw",
    "Edges",
    "Endpoint",
    "Entails",
    "Estimate",
    "Fallback",
    "Finished",
    "Forecast",
    "Grammar",
    "GuardedGenerator",
    "GuardwrapError",
    "JSONSchema",
    "Judge",
    "Keyword",
    "Language",
    "Length",
    "Masked",
    "NoCopy",
    "NumbersFrom",
    "OneOf",
    "OnlyFrom",
    "Order",
    "Outcome",
    "Parses",
    "Part",
    "PersonalData",
    "Plan",
    "Prompt",
    "Quotes",
    "Readability",
    "Regex",
    "Repair",
    "Report",
    "Secrets",
    "Share",
    "Similar",
    "Split",
    "ToolCalls",
    "Twisted",
    "Usage",
    "Values",
    "Verdict",
    "auto",
    "catalogue",
    "constraint",
    "imh",
    "load_local",
    "qrs",
]


def __getattr__(name: str) -> Any:
    # Import on first use, so that `import guardwrap` does not import torch.
    if name in __all__:
        return getattr(import_module(f"guardwrap.{_WHERE.get(name, 'constraints')}"), name)
    raise AttributeError(f"module 'guardwrap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
