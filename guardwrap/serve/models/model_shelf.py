"""All models of a server, by their names in requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from guardwrap.serve.admission import Shutdown
from guardwrap.serve.error_responses import no_model
from guardwrap.serve.models.model_loader import ModelLoader
from guardwrap.serve.models.model_policy import policies_of, require_files
from guardwrap.serve.models.model_slot import ModelSlot
from guardwrap.serve.server_settings import ModelSettings, ServerSettings

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator


class ModelShelf:
    """The models of a server. None is loaded at first, and all files are read except those of weights."""

    def __init__(self, settings: ServerSettings, load: Callable[[ModelSettings], GuardedGenerator]) -> None:
        policies, models = policies_of(settings), settings.served_models
        for name, model in models.items():
            if model.load == "first_use":
                require_files(name, model, policies[name])
        self.shutdown = Shutdown()
        self._loader = ModelLoader()
        self.slots = [
            ModelSlot(model, policies[name], partial(load, model), self._loader, self.shutdown)
            for name, model in models.items()
        ]
        self._by_name = {name: slot for slot in self.slots for name in slot.policy.models}

    @property
    def names(self) -> list[str]:
        """All names that requests may use, with aliases."""
        return list(self._by_name)

    @property
    def inside(self) -> int:
        """Number of admitted requests to all models."""
        return sum(slot.gate.inside for slot in self.slots)

    @property
    def places(self) -> int:
        """Maximum number of admitted requests to all models."""
        return sum(slot.policy.limits.running + slot.policy.limits.queue for slot in self.slots)

    def slot(self, name: Any) -> ModelSlot:
        """Return a model by its name or an alias."""
        if not isinstance(name, str) or name not in self._by_name:
            raise no_model(name, [slot.policy.models for slot in self.slots])
        return self._by_name[name]

    def load_at_start(self) -> None:
        """Load the models that the settings want loaded when the server starts."""
        for slot in self.slots:
            if slot.settings.load == "start":
                slot.load_now()

    def watch(self) -> None:
        """Start to count the idle time of the loaded models. Call it in the server's event loop."""
        for slot in self.slots:
            slot.watch()

    def close(self, seconds: float) -> bool:
        """Load nothing from now on; return whether nothing is being loaded any more within this time."""
        return self._loader.close(seconds)
