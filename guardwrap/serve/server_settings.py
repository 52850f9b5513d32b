"""The settings of a server: one YAML file, read as constraint files are, and what it names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from guardwrap.constraints.base import walk
from guardwrap.constraints.files.constraint_file import ConstraintFile, load
from guardwrap.constraints.files.kind_registry import kinds
from guardwrap.constraints.files.proposal_fields import AnAdapter, AProposal
from guardwrap.constraints.kinds.function import Python
from guardwrap.documents.validation import Invalid, document_of, validated
from guardwrap.documents.yaml_nodes import read_text, reading
from guardwrap.errors import SpecError, UsageError
from guardwrap.task_settings import beside, known_as

__all__ = ["Keys", "ServerLimits", "ServerSettings", "read_keys", "read_named", "read_server_settings"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ServerLimits(_Strict):
    """What one request may ask for, and how many are served at once."""

    body_bytes: int = Field(default=1_000_000, ge=1, description="Size of a request.")
    body_seconds: float = Field(default=30.0, gt=0, description="Seconds in which a request must have arrived.")
    max_new_tokens: int = Field(default=1024, ge=1, description="Tokens of a text.")
    attempts: int = Field(default=1000, ge=1, description="Attempts for one prompt.")
    seconds: float = Field(
        default=120.0, gt=0, description="Seconds for one prompt; attempts under way run to their end."
    )
    n: int = Field(default=8, ge=1, description="Texts of one request, over all of its prompts.")
    constraint_characters: int = Field(default=50_000, ge=1, description="Size of a schema or constraint, as JSON.")
    pattern_characters: int = Field(
        default=10_000, ge=1, description="Size of a regular expression, grammar or choice."
    )
    running: int = Field(default=32, ge=1, description="Requests in the batch at once.")
    queue: int = Field(default=256, ge=0, description="Requests that wait for a place in the batch.")
    grace_seconds: float = Field(
        default=30.0, ge=0, description="Seconds for what runs when the server is told to end."
    )
    checker_seconds: float = Field(
        default=5.0, gt=0, description="Seconds for one call of a function of the server's own."
    )


class Keys(_Strict):
    """Where the API keys are. Never in the settings themselves."""

    file: str | None = Field(
        default=None, description="A file with one key a line, found by its way from the settings."
    )
    environment: str | None = Field(default=None, description="An environment variable with keys, commas between them.")

    @model_validator(mode="after")
    def _one(self) -> Keys:
        if (self.file is None) == (self.environment is None):
            raise ValueError("give one of file and environment")
        return self


class ServerSettings(_Strict):
    """What is served, to whom, and within which limits."""

    model: str = Field(default="local", description="A Hub id, a folder, or local: the embedded model.")
    name: str | None = Field(default=None, description="What requests call the model; left out: its last name.")
    aliases: tuple[str, ...] = Field(default=(), strict=False, description="Other names of the model.")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        default=None, description="What the model computes in."
    )
    constraints: str | None = Field(default=None, description="A folder; each .yaml file in it is a named constraint.")
    always: tuple[str, ...] = Field(
        default=(), strict=False, description="Named constraints that every text must satisfy."
    )
    allow_code: bool = Field(default=False, description="Whether files of that folder may name Python functions.")
    adapter: AnAdapter | None = Field(
        default=None, description="What attempts are drawn from, if not the model itself."
    )
    adapters: dict[str, AnAdapter] = Field(default={}, description="Adapters that requests may name.")
    proposals: dict[str, AProposal] = Field(default={}, description="Prompts and masks that requests may name.")
    classifiers: tuple[str, ...] = Field(default=(), strict=False, description="Classifiers that requests may ask for.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    keys: Keys | None = Field(
        default=None, description="Where the API keys are; left out: whoever reaches it may use it."
    )
    batch_size: int | None = Field(default=None, ge=1, description="Attempts side by side; left out: 32.")
    limits: ServerLimits = Field(
        default=ServerLimits(), description="What one request may ask for, and how many are served at once."
    )

    @property
    def served_name(self) -> str:
        """What requests call the model."""
        return self.name or known_as(self.model)


def read_server_settings(path: str | Path | None = None, *, changes: Mapping[str, Any] | None = None) -> ServerSettings:
    """Read the settings of a server.

    Parameters
    ----------
    path
        Path of the YAML file; None for the defaults. Files and folders that it names are looked for beside it first.
    changes
        Fields to replace, from the command line.

    Raises
    ------
    SpecError
        If the file cannot be read or is not well formed; the message names path and line.
    UsageError
        If a field cannot be replaced by what was given.
    """
    changes, fields = dict(changes or {}), TypeAdapter(ServerSettings)
    kinds()  # other packages' are imported before the clock runs
    data: dict[str, Any] = {}
    found: dict[str, Any] = {}
    if path is not None:
        with reading(str(path)):
            source = document_of(path, ServerSettings)
            settings = source.read(fields)
        data = source.data
        found = {name: beside(path, data[name]) for name in ("model", "constraints") if data.get(name)}
        if settings.keys is not None and settings.keys.file is not None:
            found["keys"] = Keys(file=beside(path, settings.keys.file))
    try:
        settings = validated({**data, **changes}, fields)
    except Invalid as invalid:
        raise UsageError(str(invalid)) from None
    return settings.model_copy(update={name: value for name, value in found.items() if name not in changes})


def read_named(settings: ServerSettings) -> dict[str, ConstraintFile]:
    """Read the server's own constraint files.

    Returns
    -------
    dict of str to ConstraintFile
        By the files' names, without ``.yaml``.

    Raises
    ------
    UsageError
        If there is no such folder, or two files have one name.
    ConstraintError
        If a file is not well formed, or names code where that is not allowed, or that is not there.
    """
    if settings.constraints is None:
        return {}
    place = Path(settings.constraints)
    if not place.exists():
        raise UsageError(f"there is no folder {str(place)!r}; give one whose .yaml files are constraint files")
    paths = [place] if place.is_file() else sorted(p for p in place.iterdir() if p.suffix in (".yaml", ".yml"))
    named: dict[str, ConstraintFile] = {}
    for path in paths:
        if path.stem in named:
            raise UsageError(f"two files of {str(place)!r} are called {path.stem!r}; rename one of them")
        try:
            file = named[path.stem] = load(path, allow_code=settings.allow_code)
            for part in walk(file.constraint):
                if isinstance(part, Python):
                    part.call, part.call_prefix  # noqa: B018  # a function that is not there is missed now
        except SpecError as error:
            way_out = str(error).replace("pass allow_code=True", "say --allow-code or allow_code: true")
            raise SpecError(way_out) from None
    return named


def read_keys(settings: ServerSettings) -> tuple[str, ...]:
    """Return the API keys; none where whoever reaches the server may use it.

    Raises
    ------
    UsageError
        If there are none where the settings say they are.
    """
    if settings.keys is None:
        return ()
    if settings.keys.file is not None:
        found, where = read_text(settings.keys.file).splitlines(), f"the file {settings.keys.file!r}"
    else:
        name = str(settings.keys.environment)
        found, where = os.environ.get(name, "").split(","), f"the environment variable {name}"
    keys = tuple(key.strip() for key in found if key.strip())
    if not keys:
        raise UsageError(f"{where} has no API key; put one there, or leave keys: out of the settings")
    return keys
