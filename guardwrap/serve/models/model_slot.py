"""The place of a model in a server: loaded when a request needs it, and unloaded when none has come for a while."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from guardwrap.constraints.files.catalogue_files import catalogue_descriptions
from guardwrap.constraints.files.proposal_fields import NAMED
from guardwrap.environment.package_data import PREFIX
from guardwrap.errors import first_line
from guardwrap.samplers.sampler_registry import sampler_names
from guardwrap.serve.admission import Gate, Shutdown
from guardwrap.serve.error_responses import not_loaded
from guardwrap.serve.models.model_loader import ModelLoader
from guardwrap.serve.models.served_model import ServedModel
from guardwrap.serve.request_policy import RequestPolicy
from guardwrap.serve.server_settings import ModelSettings

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator

log = logging.getLogger("guardwrap.serve")


class ModelSlot:
    """A model of a server, loaded or not, with its rules and its own limits of running and waiting requests.

    Except for ``load_now``, it is used in one event loop.
    """

    def __init__(
        self,
        settings: ModelSettings,
        policy: RequestPolicy,
        load: Callable[[], GuardedGenerator],
        loader: ModelLoader,
        shutdown: Shutdown,
    ) -> None:
        self.name = policy.models[0]
        self.settings, self.policy = settings, policy
        self.gate = Gate(policy.limits.running, policy.limits.queue, shutdown)
        self.model: ServedModel | None = None
        self.start_seconds: float | None = None
        self.on_load: Callable[[float | None], None] = lambda seconds: None
        self._load, self._loader = load, loader
        self._loading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def rows(self) -> int:
        """Number of attempts that hold a row of its batch."""
        return 0 if self.model is None else self.model.session.rows

    def load_now(self) -> None:
        """Load the model in this thread, before the server accepts requests."""
        began = time.monotonic()
        self.model = ServedModel(self._load(), self.policy)
        self.start_seconds = time.monotonic() - began

    @contextmanager
    def place(self) -> Iterator[None]:
        """Admit a request for the duration of the ``with`` block, in which a loaded model is not unloaded."""
        try:
            with self.gate.place():
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                yield
        finally:
            self.watch()

    def watch(self) -> None:
        """Unload the model after ``idle_seconds`` from now, unless a request comes."""
        seconds = self.settings.idle_seconds
        if seconds is not None and self.model is not None and not self.gate.inside:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(seconds, self.unload)

    async def loaded(self) -> ServedModel:
        """Return the model, after loading it if necessary. Call it within ``place``; concurrent calls load it once."""
        if self.model is None:
            if self._loading is None:
                self._loading = asyncio.create_task(self._begin())
            await asyncio.shield(self._loading)  # it continues for the others if this request ends
        if self.model is None:
            raise not_loaded(self.name)
        return self.model

    async def _begin(self) -> None:
        began = time.monotonic()
        try:
            self.model = await self._loader.run(partial(_loaded, self._load, self.policy))
        except Exception as error:  # a damaged file can make the libraries raise anything
            log.warning("could not load %s: %s: %s", self.name, type(error).__name__, first_line(error))
            log.debug("could not load a model", exc_info=error)
        finally:
            self._loading = None
        if self.model is None:
            self._loader.free()
            self.on_load(None)
            return
        seconds = time.monotonic() - began
        log.info("loaded %s in %.2f s", self.name, seconds)
        self.on_load(seconds)
        self.watch()  # the requests that have asked for it may be gone

    def unload(self) -> None:
        """Unload the model if no request uses it. The next request loads it again."""
        if self.model is None or self.gate.inside:
            return
        self.model = None  # its threads end with it
        self._loader.free()
        log.info("unloaded %s after %g s without a request", self.name, self.settings.idle_seconds or 0)

    def about(self) -> dict[str, Any]:
        """Describe the model, and what requests to it may name, for the server's page."""
        described = {name: file.description for name, file in self.policy.named.items()}
        ready_made = {PREFIX + name: about for name, about in catalogue_descriptions().items()}
        return {
            "model": self.name,
            "aliases": list(self.policy.models[1:]),
            "loaded": self.model is not None,
            "always": list(self.settings.always),
            "constraints": [{"name": name, "description": text} for name, text in described.items()],
            "catalogue": [{"name": name, "description": text} for name, text in ready_made.items()],
            "samplers": sampler_names(),
            "proposals": [*NAMED, *self.policy.proposals],
            "adapters": list(self.policy.adapters),
            "classifiers": list(self.policy.classifiers),
            "batch_size": self.settings.batch_size if self.model is None else self.model.guarded.batch_size,
            "limits": self.policy.limits.model_dump(),
        }


def _loaded(load: Callable[[], GuardedGenerator], policy: RequestPolicy) -> ServedModel:
    return ServedModel(load(), policy)
