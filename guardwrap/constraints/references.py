"""References in a JSON Schema: what each refers to, found once, when the schema is read. Nothing is ever fetched.

A schema is one document of resources: the schema itself, those in it that have an ``$id``, and the meta-schema of the
draft where it is referred to. ``referencing`` finds other schemas than the draft says: it follows ``$ref`` to a dynamic
anchor dynamically, forgets resources that were entered without a reference, and takes the wrong base below an anchor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

import jsonschema_specifications
from referencing.jsonschema import DRAFT202012

from guardwrap.constraints.limits import look
from guardwrap.errors import ConstraintError

__all__ = ["META_SCHEMA", "Place", "References", "Scope"]

HERE = "urn:guardwrap:schema"  # unless the schema has an $id
META_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
_OF_THE_DRAFT = META_SCHEMA.removesuffix("schema")
_DRAFTS = ("https://json-schema.org/draft/", "http://json-schema.org/draft-", "http://json-schema.org/schema")


class Place(NamedTuple):
    """A schema and where it stands.

    Parameters
    ----------
    contents
        The schema.
    base
        URI of its resource.
    """

    contents: Any
    base: str


class Resolved(NamedTuple):
    """What a reference refers to.

    Parameters
    ----------
    contents
        The schema.
    resolver
        The scope in it.
    """

    contents: Any
    resolver: Scope


@dataclass(frozen=True, slots=True)
class Scope:
    """Where the validator stands: it takes the place of ``referencing.Resolver``, whose names it has.

    Parameters
    ----------
    references
        Of the whole schema.
    _base_uri
        Of the resource that the validator is in.
    entered
        URIs of all resources on the way here, the outermost first: the dynamic scope.
    """

    references: References
    _base_uri: str
    entered: tuple[str, ...]

    def into(self, place: Place) -> Resolved:
        """Enter a schema."""
        if place.base == self._base_uri:
            return Resolved(place.contents, self)
        entered = self.entered if place.base in self.entered else (*self.entered, place.base)
        return Resolved(place.contents, Scope(self.references, place.base, entered))

    def in_subresource(self, resource: Any) -> Scope:
        """Enter a schema that stands in the one that the validator is in."""
        contents = resource.contents
        if isinstance(contents, bool) or "$id" not in contents:
            return self
        return self.into(Place(contents, joined(self._base_uri, contents["$id"]))).resolver

    def lookup(self, reference: str) -> Resolved:
        """Follow a ``$ref``."""
        return self.into(self.references.found[self._base_uri, reference])

    def lookup_dynamic(self, reference: str) -> Resolved:
        """Follow a ``$dynamicRef``: to the outermost anchor of its name, if what it names is a dynamic one."""
        place = self.references.found[self._base_uri, reference]
        dynamic, name = self.references.dynamic, unquote(urldefrag(reference).fragment)
        if (place.base, name) in dynamic:
            outermost = next((uri for uri in self.entered if (uri, name) in dynamic), place.base)
            place = Place(dynamic[outermost, name], outermost)
        return self.into(place)


@dataclass(eq=False, slots=True)
class References:
    """The resources and anchors of a document, and what its references refer to.

    Parameters
    ----------
    bases
        Of each schema, by its ``id``, the URI of its resource.
    resources
        By their URIs.
    anchors
        By the URI of their resource and their name; ``$dynamicAnchor`` is among them.
    dynamic
        Those that are dynamic.
    found
        What references refer to, by the URI of the resource that they stand in and their spelling.
    unread
        Schemas that were taken in and not looked at yet.
    """

    bases: dict[int, str] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    anchors: dict[tuple[str, str], Any] = field(default_factory=dict)
    dynamic: dict[tuple[str, str], Any] = field(default_factory=dict)
    found: dict[tuple[str, str], Place] = field(default_factory=dict)
    unread: list[Any] = field(default_factory=list)

    @property
    def ambiguous(self) -> bool:
        """Whether some ``$dynamicRef`` may lead to one place or another, by the way that leads to it."""
        return len({name for _, name in self.dynamic}) < len(self.dynamic)

    def add_document(self, schema: Any) -> Scope:
        """Take in a schema of JSON, and return the scope at its top."""
        named = isinstance(schema, dict) and "$id" in schema
        base = joined("", schema["$id"]) if named else HERE
        if not named:
            self.resources[base] = schema
        self.add(Place(schema, base))
        return Scope(self, base, (base,))

    def add(self, top: Place, *, names: bool = True) -> None:
        """Take in a schema and all in it.

        Parameters
        ----------
        top
            The schema.
        names
            Whether those in it may have names. A schema where none is expected, as in an ``enum``, may not: the draft
            leaves open whether others can refer to it.
        """
        todo = [top]
        while todo:
            look()
            schema, base = todo.pop()
            if isinstance(schema, bool) or id(schema) in self.bases:
                continue
            for key in ("$id", "$anchor", "$dynamicAnchor"):
                if key in schema and not names:
                    raise ConstraintError(f"schema refers to one with {key} where none is expected; move it to $defs")
            dialect = schema.get("$schema", META_SCHEMA)
            if not dialect.startswith(_DRAFTS):
                raise ConstraintError(
                    f"schema is of a dialect of its own, {dialect[:80]!r}; leave $schema out if it is of draft 2020-12"
                )
            if "$id" in schema:
                base = joined(base, schema["$id"])
                _put(self.resources, base, schema, f"$id {base[:80]!r}")
            for key in ("$anchor", "$dynamicAnchor"):
                if key in schema:
                    _put(self.anchors, (base, schema[key]), schema, f"anchor {schema[key][:80]!r}")
            if "$dynamicAnchor" in schema:
                self.dynamic[base, schema["$dynamicAnchor"]] = schema
            self.bases[id(schema)] = base
            self.unread.append(schema)
            todo += [Place(child, base) for child in DRAFT202012.subresources_of(schema)]

    def follow(self, reference: str, base: str) -> Place:
        """Find what a reference refers to. It may be where no schema is expected, and then is to be taken in.

        Parameters
        ----------
        reference
            As it is spelt.
        base
            URI of the resource that it stands in.

        Raises
        ------
        ConstraintError
            If it refers to what is not in the document.
        """
        if reference.startswith("#"):  # for the sake of URIs that urljoin cannot read, such as URNs
            uri, fragment = base, unquote(reference[1:])
        else:
            uri, fragment = joined(base, reference), unquote(urldefrag(reference).fragment)
        if uri not in self.resources and uri in _meta_schemas():
            for meta in _meta_schemas().values():
                self.add_document(json.loads(meta))
        if uri not in self.resources:
            raise ConstraintError(
                f"schema refers to {reference[:80]!r}, another document; only references inside it work, so put that "
                "document in $defs, with its $id"
            )
        place = self._at(uri, fragment)
        if place is None:
            raise ConstraintError(f"schema refers to {reference[:80]!r}, which is not in it")
        self.found[base, reference] = place
        return place

    def _at(self, uri: str, fragment: str) -> Place | None:
        """Return what a fragment of a resource stands for."""
        schema, base = self.resources[uri], uri
        if not fragment.startswith("/"):
            named = self.anchors.get((uri, fragment)) if fragment else schema
            return None if named is None else Place(named, uri)
        for step in fragment[1:].split("/"):
            look()
            key = step.replace("~1", "/").replace("~0", "~")
            try:
                schema = _item(schema, key) if isinstance(schema, list) else schema[key]
            except (LookupError, TypeError):  # TypeError of what has no parts
                return None
            base = self.bases.get(id(schema), base)
        return Place(schema, base)


def _item(items: list[Any], key: str) -> Any:
    """Return the item that a step of a pointer leads to; LookupError for none: 01 is no place, and neither is ١."""
    if not (key.isascii() and key.isdigit() and len(key) < 10 and (key == "0" or key[0] != "0")):
        raise LookupError(key)
    return items[int(key)]


def joined(base: str, reference: str) -> str:
    """Return the URI, without its fragment, that a reference stands for."""
    try:
        return urldefrag(urljoin(base, reference)).url
    except ValueError as error:
        raise ConstraintError(
            f"invalid JSON Schema: an $id or a reference in it, {reference[:80]!r}: {str(error)[:100]}"
        ) from None


def _put(table: dict[Any, Any], key: Any, schema: Any, name: str) -> None:
    if table.setdefault(key, schema) is not schema:
        raise ConstraintError(f"two schemas in the schema have the {name}; give one of them another")


@cache
def _meta_schemas() -> dict[str, str]:
    """Return the draft's own schemas, by their URIs, as JSON: whoever takes one in changes it."""
    registry = jsonschema_specifications.REGISTRY
    return {uri: json.dumps(registry.contents(uri)) for uri in registry if uri.startswith(_OF_THE_DRAFT)}
