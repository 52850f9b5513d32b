"""Settings of a server: one YAML file, and the files that it names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from guardwrap.calls.task_settings import beside, known_as
from guardwrap.constraints.base import walk
from guardwrap.constraints.files.constraint_data import kinds
from guardwrap.constraints.files.constraint_file import ConstraintFile, load
from guardwrap.constraints.files.file_fields import AnAdapter, AProposal, ARepair
from guardwrap.constraints.kinds.function import Python
from guardwrap.errors import UsageError
from guardwrap.support.validation import Invalid, code_needs, document_of, validated
from guardwrap.support.yaml_nodes import read_text, reading


class _Strict(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, frozen=True)


class ServerLimits(_Strict):
    """Limits for one request, for the number of requests that are served at once, and for the shutdown."""

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
    running: int = Field(default=32, ge=1, description="Maximum requests in the batch at once.")
    queue: int = Field(default=256, ge=0, description="Maximum requests that wait for a place in that batch.")
    checker_seconds: float = Field(
        default=5.0, gt=0, description="Maximum seconds for one call of a Python function of the server."
    )
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


class ServerSettings(_Strict):
    """What to serve, to whom, and within which limits."""

    model: str = Field(default="local", description="A Hub id, a folder, or local: the embedded model.")
    name: str | None = Field(
        default=None, description="Name of the model in requests. Default: the Hub id, or the name of the folder."
    )
    aliases: tuple[str, ...] = Field(default=(), strict=False, description="Other names of the model.")
    images: bool = Field(
        default=False, description="Whether chats may have images. Such a model is served more slowly."
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        default=None, description="Data type in which the model computes."
    )
    constraints: str | None = Field(default=None, description="A folder; each .yaml file in it is a named constraint.")
    check_only: str | None = Field(
        default=None, description="Like constraints, or one file: serve no model, and only check texts by these rules."
    )
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
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    keys: Keys | None = Field(default=None, description="Location of the API keys. By default, no key is required.")
    limits: ServerLimits = Field(
        default=ServerLimits(), description="Limits for one request, and for how many are served at once."
    )

    @model_validator(mode="after")
    def _without_a_model(self) -> ServerSettings:
        others = self.model_fields_set & {"model", "constraints", "adapter"}
        if self.check_only is not None and others:
            raise ValueError(f"check_only serves no model; leave out {min(others)}")
        return self

    @property
    def served_name(self) -> str:
        """Name of the model in requests, or of the server in metrics if it has no model."""
        return self.name or ("checks" if self.check_only is not None else known_as(self.model))


_ONE_MODEL = "a server has one model; run one server per model, behind a proxy that chooses by the field model"


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
            if "models" in source.data:
                raise source.error(("models",), _ONE_MODEL)
            settings = source.read(fields)
        data = source.data
        named = ((name, getattr(settings, name)) for name in ("model", "constraints", "check_only"))
        resolved |= {name: beside(path, value) for name, value in named if name in data and value}
        if settings.keys is not None and settings.keys.file is not None:
            resolved["keys"] = Keys(file=beside(path, settings.keys.file))
    try:
        settings = validated({**data, **changes}, fields)
    except Invalid as invalid:
        raise UsageError(str(invalid)) from None
    return settings.model_copy(update={name: value for name, value in resolved.items() if name not in changes})


def read_named(settings: ServerSettings) -> dict[str, ConstraintFile]:
    """Read the constraint files that requests may name."""
    if (folder := settings.check_only or settings.constraints) is None:
        return {}
    place = Path(folder)
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
