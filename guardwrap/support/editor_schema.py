"""JSON Schemas for editors: those of pydantic, with the docstrings as descriptions of the fields."""

from __future__ import annotations

import inspect
import json
from typing import Any


def summary(documented: Any) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return _plain((inspect.getdoc(documented) or "").split("\n\n")[0])


def parameters(documented: Any) -> dict[str, str]:
    """Return the description of each parameter in a numpydoc docstring, as one line each."""
    text = documented if isinstance(documented, str) else inspect.getdoc(documented) or ""
    _, _, section = text.partition("Parameters\n----------\n")
    descriptions: dict[str, str] = {}
    names: list[str] = []
    lines = section.splitlines()
    for number, line in enumerate(lines):
        if number + 1 < len(lines) and set(lines[number + 1]) == {"-"}:
            break  # the next section
        if line and not line[0].isspace():
            names = [name.strip() for name in line.split(",")]
        for name in names if line[:1].isspace() else ():
            descriptions[name] = f"{descriptions.get(name, '')} {line.strip()}".strip()
    return {name: _plain(description) for name, description in descriptions.items()}


def add_descriptions(schema: dict[str, Any], documented: Any) -> None:
    """Add the descriptions in a docstring to the JSON Schema of a mapping and its fields."""
    text = documented if isinstance(documented, str) else inspect.getdoc(documented) or ""
    described = parameters(text)
    about = _plain(text.split("\n\n")[0])
    if about:
        schema["description"] = about
    for name, field in schema.get("properties", {}).items():
        field.pop("title", None)  # pydantic's title only repeats the name
        if "$ref" in field:  # editors ignore other keywords next to $ref
            field["allOf"] = [{"$ref": field.pop("$ref")}]
        field.setdefault("description", described.get(name) or about or name)


def share(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a schema in which the union of all constraint kinds is one shared definition."""
    shared: dict[str, Any] = {}

    def again(part: Any) -> Any:
        if isinstance(part, list):
            return [again(item) for item in part]
        if not isinstance(part, dict):
            return part
        if part.get("discriminator", {}).get("propertyName") == "kind":
            shared.setdefault(json.dumps(part, sort_keys=True), part)
            return {"$ref": f"#/$defs/{name}"}
        return {key: again(value) for key, value in part.items()}

    result: dict[str, Any] = again(schema)
    for kinds in shared.values():  # there is one, because all copies are equal
        result["$defs"][name] = kinds
        for reference in kinds["discriminator"]["mapping"].values():
            kind = result["$defs"][reference.rsplit("/", 1)[-1]]
            kind["required"] = ["kind", *kind.get("required", ())]  # only this field tells the kinds apart
    return result


def _plain(text: str) -> str:
    """Return a docstring's text in one line, with Markdown's single backticks."""
    return " ".join(text.split()).replace("``", "`")
