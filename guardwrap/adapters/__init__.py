"""Adapters: LoRA weights on an unchanged model, saved in folders with cards.

Use ``attach`` to create an adapter, ``describe`` to make its Card, and ``save_adapter`` to save both.
"""

from guardwrap.adapters.adapter_folder import read_adapter, save_adapter
from guardwrap.adapters.card import Card, Figure, Figures, Fingerprint, describe, fingerprint
from guardwrap.adapters.loaded import load_adapter
from guardwrap.adapters.lora import attach, merged, tensors_of

__all__ = [
    "Card",
    "Figure",
    "Figures",
    "Fingerprint",
    "attach",
    "describe",
    "fingerprint",
    "load_adapter",
    "merged",
    "read_adapter",
    "save_adapter",
    "tensors_of",
]
