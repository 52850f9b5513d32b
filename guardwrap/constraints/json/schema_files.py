"""JSON Schemas in separate files."""

from __future__ import annotations

import json
from typing import Any

from guardwrap.documents.limits import MAX_DEPTH, MAX_VALUES
from guardwrap.documents.time_limits import check_deadline
from guardwrap.documents.yaml_nodes import NodeReader, compose, one_line, path_beside, read_text, short
from guardwrap.errors import SpecError


def read_schema_file(name: str) -> Any:
    """Return the contents of a JSON (``.json``) or YAML file as plain JSON types."""
    path = str(path_beside(name))
    text = read_text(path)
    if not path.endswith(".json"):
        return NodeReader(path).read(compose(text, path, "a schema is a mapping or a bool"))
    try:
        schema = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}:{error.lineno}: malformed JSON: {one_line(error.msg)}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise SpecError(f"{path}: {one_line(error)}") from None
    _require_small(schema, path)
    return schema


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {short(repeated)}")
    return mapping


def _require_small(schema: Any, path: str) -> None:
    """Apply the limits for YAML files to JSON."""
    level, values = [schema], 0
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
