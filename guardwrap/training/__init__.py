"""Proposals close to g, trained once and loaded as adapters: ``train(guarded, TrainingSettings(...), folder)``."""

from guardwrap.training.progress import Row, Stage
from guardwrap.training.settings import Settings, TrainingSettings, read_settings
from guardwrap.training.train import Trained, train

__all__ = ["Row", "Settings", "Stage", "Trained", "TrainingSettings", "read_settings", "train"]
