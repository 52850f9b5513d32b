"""Many rows on many machines: Ray Data, with a model in each worker.

Imported when it is asked for; needs ``pip install 'guardwrap[ray]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guardwrap.ray.datasets import map_prompts, save

__all__ = ["map_prompts", "save"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # torch comes with them, which the process that drives workers need not have
        from guardwrap.ray import datasets

        return getattr(datasets, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
