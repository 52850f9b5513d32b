"""Proposals close to g, trained once and loaded as adapters: ``train(guarded, Settings(...), folder)``."""

from guardwrap.training.progress import Row
from guardwrap.training.settings import Settings, read_settings
from guardwrap.training.train import Trained, train

__all__ = ["Row", "Settings", "Trained", "read_settings", "train"]
