"""The suite with every model on an accelerator: ``GUARDWRAP_TEST_DEVICE=cuda``."""

from functools import wraps
from typing import Any

import torch
from transformers import PreTrainedModel


def put_models_on(device: str) -> None:
    """Move models to a device when they are put in evaluation mode, which every model of the tests is."""
    evaluate = PreTrainedModel.eval

    @wraps(evaluate)
    def moved(model: PreTrainedModel, *args: Any) -> PreTrainedModel:
        model = evaluate(model, *args)
        if all(parameter.device == torch.device("cpu") for parameter in model.parameters()):
            model.to(device)
        return model

    PreTrainedModel.eval = moved
