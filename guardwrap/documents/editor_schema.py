"""JSON Schemas for editors: pydantic's, with what the docstrings say of each field."""

from __future__ import annotations

import inspect
import json
from typing import Any

__all__ = ["add_descriptions", "parameters", "share", "summary"]


def summary(documented: Any) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return _plain((inspect.getdoc(documented) or "").split("\n\n")[0])


def parameters(documented: Any) -> dict[str, str]:
    """Return what a numpydoc docstring says of each parameter, each in one line.

    Parameters
    ----------
    documented
        A class or function, or its docstring.
    """
    text = documented if isinstance(documented, str) else inspect.getdoc(documented) or ""
    _, _, section = text.partition("Parameters\n----------\n")
    found: dict[str, str] = {}
    names: list[str] = []
    lines = section.splitlines()
    for number, line in enumerate(lines):
        if number + 1 < len(lines) and set(lines[number + 1]) == {"-"}:
            break  # the next section
        if line and not line[0].isspace():
            names = [name.strip() for name in line.split(",")]
        for name in names if line[:1].isspace() else ():
            found[name] = f"{found.get(name, '')} {line.strip()}".strip()
    return {name: _plain(said) for name, said in found.items()}


def add_descriptions(schema: dict[str, Any], documented: Any) -> None:
    """Put into the schema of a mapping what a docstring says of it and its fields.

    Parameters
    ----------
    schema
        Changed in place.
    documented
        A class or function, or its docstring.
    """
    text = documented if isinstance(documented, str) else inspect.getdoc(documented) or ""
    said = parameters(text)
    about = _plain(text.split("\n\n")[0])
    if about:
        schema["description"] = about
    for name, field in schema.get("properties", {}).items():
        field.pop("title", None)  # the name again
        if "$ref" in field:  # beside which editors read nothing
            field["allOf"] = [{"$ref": field.pop("$ref")}]
        field.setdefault("description", said.get(name) or about or name)


def share(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Write what says which kind of constraint a mapping is once, as a definition, in the place of everywhere.

    Parameters
    ----------
    schema
        Of a whole file.
    name
        Of the definition.
    """
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

    made: dict[str, Any] = again(schema)
    for kinds in shared.values():  # one: all say the same
        made["$defs"][name] = kinds
        for reference in kinds["discriminator"]["mapping"].values():
            kind = made["$defs"][reference.rsplit("/", 1)[-1]]
            kind["required"] = ["kind", *kind.get("required", ())]  # which of them it is, is told by it alone
    return made


def _plain(text: str) -> str:
    """Put a docstring's text into one line, with the quotes of Markdown."""
    return " ".join(text.split()).replace("``", "`")
