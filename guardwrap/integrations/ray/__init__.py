"""Generation for many rows on several machines with Ray Data, with a model in each worker.

Requires ``pip install 'guardwrap[ray]'``. The module is imported only on request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guardwrap.integrations.ray.datasets import map_prompts

__all__ = ["map_prompts"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # imports torch, which the process that only starts workers does not need
        from guardwrap.integrations.ray import datasets

        return getattr(datasets, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
