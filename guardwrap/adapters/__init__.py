"""Adapters: put on a model that stays as it is, kept in folders, and known by their cards.

What training needs is here: ``attach`` a new adapter, ``describe`` it in a Card, ``save_adapter``.
"""

from guardwrap.adapters.adapter_folder import read_adapter, save_adapter
from guardwrap.adapters.card import Card, Figure, Figures, describe
from guardwrap.adapters.fingerprints import Fingerprint, fingerprint
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
