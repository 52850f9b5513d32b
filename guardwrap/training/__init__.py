"""Training of proposals close to g, which are loaded as adapters: ``train(guarded, TrainingSettings(...), folder)``."""

from guardwrap.training.learning_curve import Row, Stage
from guardwrap.training.train import train
from guardwrap.training.training_report import Trained
from guardwrap.training.training_settings import TrainingSettings, read_settings

__all__ = ["Row", "Stage", "Trained", "TrainingSettings", "read_settings", "train"]
