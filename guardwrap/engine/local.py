"""The embedded default model, under the name of earlier versions; use ``from guardwrap import load_local``."""

from __future__ import annotations

from guardwrap.pipelines.embedded_model import load_local

__all__ = ["load_local"]
