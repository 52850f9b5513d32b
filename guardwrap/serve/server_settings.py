"""Settings of a server: one YAML file, and the files that it names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from guardwrap.constraints.base import walk
from guardwrap.constraints.files.constraint_file import ConstraintFile, load
from guardwrap.constraints.files.kind_registry import kinds
from guardwrap.constraints.files.proposal_fields import AnAdapter, AProposal
from guardwrap.constraints.files.repair_field import ARepair
from guardwrap.constraints.kinds.function import Python
from guardwrap.documents.validation import Invalid, code_needs, document_of, validated
from guardwrap.documents.yaml_nodes import read_text, reading
from guardwrap.errors import UsageError
from guardwrap.task_settings import beside, known_as


class _Strict(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, frozen=True)


class RequestLimits(_Strict):
    """Limits for one request to a model, and for the number of its requests that are served at once."""

    max_new_tokens: int = Field(default=1024, ge=1, description="Maximum tokens per text.")
    clamp: bool = Field(
        default=False,
        description="Whether a larger max_tokens is lowered to what the limit and the context allow, not rejected.",
    )
    attempts: int = Field(default=1000, ge=1, description="Maximum attempts per prompt.")
    seconds: float = Field(
        default=120.0, gt=0, description="Maximum seconds per prompt; attempts that have begun are completed."
    )
    n: int = Field(default=8, ge=1, description="Maximum texts per request, over all of its prompts.")
    repair_turns: int = Field(default=3, ge=0, description="Maximum repair turns per prompt that a request may choose.")
    constraint_characters: int = Field(
        default=50_000, ge=1, description="Maximum size of a schema or constraint, in characters of JSON."
    )
    pattern_characters: int = Field(
        default=10_000, ge=1, description="Maximum size of a regular expression, grammar or choice, in characters."
    )
    running: int = Field(default=32, ge=1, description="Maximum requests in the batch of a model at once.")
    queue: int = Field(default=256, ge=0, description="Maximum requests that wait for a place in that batch.")
    checker_seconds: float = Field(
        default=5.0, gt=0, description="Maximum seconds for one call of a Python function of the server."
    )


class ServerLimits(RequestLimits):
    """Limits for requests to each model, and limits of the server."""

    body_bytes: int = Field(default=1_000_000, ge=1, description="Maximum size of a request, in bytes.")
    body_seconds: float = Field(default=30.0, gt=0, description="Maximum time to receive a request, in seconds.")
    grace_seconds: float = Field(
        default=30.0, ge=0, description="Seconds that running requests have to finish after a shutdown signal."
    )


class Keys(_Strict):
    """Location of the API keys. The settings never contain the keys themselves."""

    file: str | None = Field(
        default=None, description="A file with one key per line. Its path is relative to the settings."
    )
    environment: str | None = Field(default=None, description="An environment variable with comma-separated keys.")

    @model_validator(mode="after")
    def _one(self) -> Keys:
        if (self.file is None) == (self.environment is None):
            raise ValueError("give either file or environment")
        return self


class ModelFields(_Strict):
    """A model, its rules, and what requests to it may name."""

    model: str = Field(default="local", description="A Hub id, a folder, or local: the embedded model.")
    aliases: tuple[str, ...] = Field(default=(), strict=False, description="Other names of the model.")
    images: bool = Field(
        default=False, description="Whether chats may have images. Such a model is served more slowly."
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        default=None, description="Data type in which the model computes."
    )
    constraints: str | None = Field(default=None, description="A folder; each .yaml file in it is a named constraint.")
    always: tuple[str, ...] = Field(
        default=(), strict=False, description="Named constraints that every text must satisfy."
    )
    allow_code: bool = Field(default=False, description="Whether files of that folder may name Python functions.")
    adapter: AnAdapter | None = Field(
        default=None, description="Adapter to draw attempts from, instead of the model itself."
    )
    adapters: dict[str, AnAdapter] = Field(default={}, description="Adapters that requests may name.")
    proposals: dict[str, AProposal] = Field(default={}, description="Prompts, masks and twists that requests may name.")
    repair: ARepair | None = Field(
        default=None,
        description="Repair turns of chats whose request and constraint files name none: a number, or options.",
    )
    classifiers: tuple[str, ...] = Field(
        default=(), strict=False, description="Classifiers, and judges, that requests may use."
    )
    batch_size: int | None = Field(default=None, ge=1, description="Maximum attempts in one batch. Default: 32.")
    deterministic: bool = Field(
        default=False,
        description="Whether each attempt is computed alone, for the same texts of a seed in half precision too.",
    )


class ModelSettings(ModelFields):
    """One of the models of a server."""

    load: Literal["first_use", "start"] = Field(
        default="first_use", description="When to load it: with its first request, or when the server starts."
    )
    idle_seconds: float | None = Field(
        default=600.0, gt=0, description="Seconds without a request after which it is unloaded; null keeps it."
    )
    limits: RequestLimits = Field(default=RequestLimits(), description="Limits that replace those of the server.")


class ServerSettings(ModelFields):
    """What to serve, to whom, and within which limits. There is one model, or there are several in ``models``."""

    name: str | None = Field(
        default=None, description="Name of the model in requests. Default: the Hub id, or the name of the folder."
    )
    models: dict[str, ModelSettings] = Field(
        default={},
        min_length=1,
        description="Several models, by their names in requests, instead of model.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    keys: Keys | None = Field(default=None, description="Location of the API keys. By default, no key is required.")
    limits: ServerLimits = Field(
        default=ServerLimits(), description="Limits for one request, and for how many are served at once."
    )

    @property
    def served_name(self) -> str:
        """Name in requests of the model, if there is one."""
        return self.name or known_as(self.model)

    @property
    def served_models(self) -> dict[str, ModelSettings]:
        """The models by their names in requests. A single one is loaded at the start, and kept."""
        if self.models:
            return self.models
        fields = {name: getattr(self, name) for name in ModelFields.model_fields}
        return {self.served_name: ModelSettings.model_construct(**fields, load="start", idle_seconds=None)}

    def limits_of(self, model: ModelSettings) -> ServerLimits:
        """Return the server's limits, with those that a model replaces."""
        replaced = {name: getattr(model.limits, name) for name in model.limits.model_fields_set}
        return self.limits.model_copy(update=replaced)


def read_server_settings(path: str | Path | None = None, *, changes: Mapping[str, Any] | None = None) -> ServerSettings:
    """Read the settings of a server.

    ``path``: path of the YAML file; None for the defaults. Relative paths in it are resolved against its folder
    first.
    """
    changes, fields = dict(changes or {}), TypeAdapter(ServerSettings)
    kinds()  # imports the kinds of other packages before the time limit for reading the file starts
    data: dict[str, Any] = {}
    resolved: dict[str, Any] = {}
    if path is not None:
        with reading(str(path)):
            source = document_of(path, ServerSettings)
            settings = source.read(fields)
        data = source.data
        if (conflict := _conflict(settings)) is not None:
            raise source.error(*conflict)
        resolved |= _beside(path, settings)
        if settings.models:
            models = {name: each.model_copy(update=_beside(path, each)) for name, each in settings.models.items()}
            resolved["models"] = models
        if settings.keys is not None and settings.keys.file is not None:
            resolved["keys"] = Keys(file=beside(path, settings.keys.file))
    try:
        settings = validated({**data, **changes}, fields)
    except Invalid as invalid:
        raise UsageError(str(invalid)) from None
    if (conflict := _conflict(settings)) is not None:  # only an option can cause it here
        raise UsageError(f"{conflict[0][-1]}: {conflict[1]}")
    return settings.model_copy(update={name: value for name, value in resolved.items() if name not in changes})


def _conflict(settings: ServerSettings) -> tuple[tuple[str, ...], str] | None:
    """Return where settings contradict each other, and what the problem is; None if they do not."""
    if not settings.models:
        return None
    for name in ("name", *ModelFields.model_fields):
        if name in settings.model_fields_set:
            return (name,), f"give either model, with its fields, or models; {name} belongs to each of the models"
    taken: dict[str, str] = {}
    for name, model in settings.models.items():
        if not name:
            return ("models",), "the name of a model is empty; give one"
        for each in (name, *model.aliases):
            if each in taken:
                return ("models", name), f"{each!r} is a name of the model {taken[each]!r} too; choose another"
            taken[each] = name
    return None


def _beside(path: str | Path, model: ModelFields) -> dict[str, str]:
    """Return the fields of a model that name files or folders, resolved relative to the settings."""
    fields = ((name, getattr(model, name)) for name in ("model", "constraints") if name in model.model_fields_set)
    return {name: beside(path, value) for name, value in fields if value}


def read_named(settings: ModelFields) -> dict[str, ConstraintFile]:
    """Read the constraint files of a model."""
    if settings.constraints is None:
        return {}
    place = Path(settings.constraints)
    if not place.exists():
        raise UsageError(f"there is no folder {str(place)!r}; give one whose .yaml files are constraint files")
    paths = [place] if place.is_file() else sorted(p for p in place.iterdir() if p.suffix in (".yaml", ".yml"))
    named: dict[str, ConstraintFile] = {}
    for path in paths:
        if path.stem in named:
            raise UsageError(f"two files in {str(place)!r} are called {path.stem!r}; rename one of them")
        with code_needs("; pass --allow-code or set allow_code: true if you trust the file"):
            file = named[path.stem] = load(path, allow_code=settings.allow_code)
        for part in walk(file.constraint):
            if isinstance(part, Python):
                part.call, part.call_prefix  # noqa: B018  # a missing function is reported now
    return named


def read_keys(settings: ServerSettings) -> tuple[str, ...]:
    """Return the API keys, or none if no key is required."""
    if settings.keys is None:
        return ()
    if settings.keys.file is not None:
        entries, where = read_text(settings.keys.file).splitlines(), f"the file {settings.keys.file!r}"
    else:
        name = str(settings.keys.environment)
        entries, where = os.environ.get(name, "").split(","), f"the environment variable {name}"
    keys = tuple(key.strip() for key in entries if key.strip())
    if not keys:
        raise UsageError(f"{where} has no API key; add one, or remove keys: from the settings")
    return keys
