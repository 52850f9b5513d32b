"""Schemas in files of their own."""

from __future__ import annotations

import json
from typing import Any

from guardwrap.documents.limits import MAX_DEPTH, MAX_VALUES
from guardwrap.documents.time_limits import check_deadline
from guardwrap.documents.yaml_nodes import NodeReader, compose, one_line, path_beside, read_text, short
from guardwrap.errors import SpecError

__all__ = ["read_schema_file"]


def read_schema_file(name: str) -> Any:
    """Return what a file of JSON (``.json``) or YAML says, as plain JSON types.

    Parameters
    ----------
    name
        Its path; one that a constraint file names stands beside it.

    Raises
    ------
    SpecError
        If it cannot be read, or is too large.
    """
    path = str(path_beside(name))
    text = read_text(path)
    if not path.endswith(".json"):
        return NodeReader(path).read(compose(text, path, "a schema is a mapping or a bool"))
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
        check_deadline()
        values += len(level)
        if values > MAX_VALUES:
            raise SpecError(f"{path}: more than {MAX_VALUES} values")
        inner = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = [item for part in inner for item in part]
        if not level:
            return
    raise SpecError(f"{path}: nested deeper than {MAX_DEPTH} levels")
