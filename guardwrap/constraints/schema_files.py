"""Schemas in files of their own: ``file: NAME`` in a constraint file stands for what the file holds."""

from __future__ import annotations

import json
import os
from typing import Any

from guardwrap.constraints.limits import MAX_DEPTH, MAX_VALUES, look
from guardwrap.constraints.yaml_nodes import Reader, compose, one_line, read_text, short
from guardwrap.errors import SpecError

__all__ = ["with_schemas"]


def with_schemas(constraint: Any, path: str) -> Any:
    """Return the spelling of a constraint with each schema that it names in the place of the name.

    Parameters
    ----------
    constraint
        Plain JSON types, not validated yet.
    path
        The file that holds it. A schema is looked for beside it first, as whatever files name.

    Raises
    ------
    SpecError
        If a file cannot be read, or a part has both.
    """
    look()
    if isinstance(constraint, list):
        return [with_schemas(part, path) for part in constraint]
    if not isinstance(constraint, dict):
        return constraint
    if constraint.get("kind") != "json_schema":
        return {key: with_schemas(part, path) for key, part in constraint.items()}
    if "file" not in constraint:
        return constraint
    name = constraint["file"]
    if "schema" in constraint:
        raise SpecError(f"{path}: a json_schema has both a schema and a file, {short(name)}; leave one out")
    if not isinstance(name, str) or not name:
        raise SpecError(f"{path}: the file of a json_schema is {short(name)}; give the path of a schema")
    beside = os.path.join(os.path.dirname(path), name)
    rest = {key: value for key, value in constraint.items() if key != "file"}
    return {**rest, "schema": _read(beside if os.path.exists(beside) else name)}


def _read(path: str) -> Any:
    text = read_text(path)
    if not path.endswith(".json"):
        return Reader(path).read(compose(text, path, "a schema is a mapping or a bool"))
    try:
        found = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}:{error.lineno}: malformed JSON: {one_line(error.msg)}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise SpecError(f"{path}: {one_line(error)}") from None
    _require_small(found, path)
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{short(repeated)} stands twice")
    return found


def _require_small(found: Any, path: str) -> None:
    """Hold JSON to the limits of YAML."""
    level, values = [found], 0
    for _ in range(MAX_DEPTH + 1):
        look()
        values += len(level)
        if values > MAX_VALUES:
            raise SpecError(f"{path}: more than {MAX_VALUES} values")
        inner = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = [item for part in inner for item in part]
        if not level:
            return
    raise SpecError(f"{path}: nested deeper than {MAX_DEPTH} levels")
