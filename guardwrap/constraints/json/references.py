"""References in a JSON Schema: what each refers to, found once, when the schema is read. Nothing is ever fetched.

A schema is one document of resources: the schema itself, those in it that have an ``$id``, and the meta-schemas of
drafts where they are referred to. ``referencing`` finds other schemas than the draft says: it follows ``$ref`` to a
dynamic anchor dynamically, forgets resources that were entered without a reference, and takes the wrong base below an
anchor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

import jsonschema_specifications

from guardwrap.constraints.json.drafts import DRAFT_2019, DRAFTS, UNDECLARED, Draft, draft_of, names_of, subschemas
from guardwrap.documents.time_limits import check_deadline
from guardwrap.errors import ConstraintError

__all__ = ["Known", "References", "SchemaPlace", "Scope", "meta_schemas"]

HERE = "urn:guardwrap:schema"  # unless the schema has an $id
_REFERRING = ("$ref", "$dynamicRef", "$recursiveRef")


class SchemaPlace(NamedTuple):
    """A schema and where it stands.

    Parameters
    ----------
    contents
        The schema.
    base
        URI of its resource.
    draft
        That of the schema around it.
    """

    contents: Any
    base: str
    draft: Draft = UNDECLARED


class Known(NamedTuple):
    """What is known of a schema.

    Parameters
    ----------
    schema
        The schema.
    base
        URI of its resource.
    draft
        Its draft.
    is_named
        Whether the URI is its own.
    """

    schema: dict[str, Any]
    base: str
    draft: Draft
    is_named: bool


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

    def into(self, place: SchemaPlace) -> Resolved:
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
        return self.into(SchemaPlace(contents, contents["$id"])).resolver  # a whole URI by now

    def lookup(self, reference: str) -> Resolved:
        """Follow a ``$ref``."""
        return self.into(self.references.found[self._base_uri, reference])

    def lookup_dynamic(self, reference: str) -> Resolved:
        """Follow a ``$dynamicRef``: to the outermost anchor of its name, if what it names is a dynamic one."""
        place = self.references.found[self._base_uri, reference]
        dynamic, name = self.references.dynamic, unquote(urldefrag(reference).fragment)
        if (place.base, name) in dynamic:
            outermost = next((uri for uri in self.entered if (uri, name) in dynamic), place.base)
            place = SchemaPlace(dynamic[outermost, name], outermost)
        return self.into(place)


@dataclass(eq=False, slots=True)
class References:
    """The resources and anchors of a document, and what its references refer to.

    Parameters
    ----------
    known
        The schemas that were taken in, by their ``id``.
    resources
        By their URIs.
    anchors
        By the URI of their resource and their name; ``$dynamicAnchor`` is among them.
    dynamic
        Those that are dynamic. A resource with ``$recursiveAnchor`` is one with an empty name.
    twice
        URIs of resources, and anchors, that several schemas of older drafts have: wrong only where one refers to them.
    found
        What references refer to, by the URI of the resource that they stand in and their spelling.
    unread
        Schemas that were taken in and not looked at yet.
    """

    known: dict[int, Known] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    anchors: dict[tuple[str, str], Any] = field(default_factory=dict)
    dynamic: dict[tuple[str, str], Any] = field(default_factory=dict)
    found: dict[tuple[str, str], SchemaPlace] = field(default_factory=dict)
    twice: set[Any] = field(default_factory=set)
    unread: list[Known] = field(default_factory=list)

    @property
    def ambiguous(self) -> bool:
        """Whether some ``$dynamicRef`` may lead to one place or another, by the way that leads to it."""
        return len({name for _, name in self.dynamic}) < len(self.dynamic)

    def add_document(self, schema: Any) -> Scope:
        """Take in a schema of JSON, and return the scope at its top."""
        draft = draft_of(schema, UNDECLARED)
        uri = names_of(schema, draft)[0] if isinstance(schema, dict) else None
        base = HERE if uri is None else joined("", uri)
        if uri is None:
            self.resources[base] = schema
        self.add(SchemaPlace(schema, HERE if uri is None else ""))
        return Scope(self, base, (base,))

    def add(self, top: SchemaPlace, *, names: bool = True) -> None:
        """Take in a schema and all in it.

        Parameters
        ----------
        top
            The schema.
        names
            Whether those in it may have names. A schema where none is expected, as in an ``enum``, may not if it has
            references: drafts leave open where they lead then.
        """
        todo, unexpected, refers = [top], set[str](), False
        while todo:
            check_deadline()
            schema, base, draft = todo.pop()
            if isinstance(schema, bool) or id(schema) in self.known:
                continue
            draft = draft_of(schema, draft)
            uri, anchors = names_of(schema, draft)
            if not names:
                unexpected.update({draft.id, "$anchor", "$dynamicAnchor"} & draft.keywords & schema.keys())
                refers = refers or not schema.keys().isdisjoint(_REFERRING)
                uri, anchors = None, []
            outer, base = base, base if uri is None else joined(base, uri)
            is_named = uri is not None and (base != outer or schema is top.contents or not anchors)
            if is_named:
                self._put(self.resources, base, schema, f"{draft.id} {base[:80]!r}", draft)
            for anchor in anchors:
                self._put(self.anchors, (base, anchor), schema, f"anchor {anchor[:80]!r}", draft)
            if names:
                self._add_dynamic(schema, base, draft)
            known = self.known[id(schema)] = Known(schema, base, draft, is_named)
            self.unread.append(known)
            todo += [SchemaPlace(container[key], base, draft) for _, container, key in subschemas(schema, draft)]
        if "$dynamicAnchor" in unexpected or (unexpected and refers):  # else the names change nothing
            key = min(unexpected)
            raise ConstraintError(f"schema refers to one with {key} where none is expected; move it to $defs")

    def _add_dynamic(self, schema: dict[str, Any], base: str, draft: Draft) -> None:
        if "$dynamicAnchor" in schema and "$dynamicAnchor" in draft.keywords:
            self.dynamic[base, schema["$dynamicAnchor"]] = schema
        if draft is DRAFT_2019 and schema.get("$recursiveAnchor"):
            if self.resources.get(base) is not schema:
                raise ConstraintError("schema has $recursiveAnchor in one that has no $id of its own; give it one")
            self.dynamic[base, ""] = schema

    def _put(self, table: dict[Any, Any], key: Any, schema: Any, name: str, draft: Draft) -> None:
        if table.setdefault(key, schema) is not schema:
            if not draft.ref_is_alone:
                raise ConstraintError(f"two schemas in the schema have the {name}; give one of them another")
            self.twice.add(key)

    def follow(self, reference: str, base: str) -> SchemaPlace:
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
        if not isinstance(reference, str):  # which the meta-schema of draft 4 does not rule out
            raise ConstraintError(f"invalid JSON Schema: $ref must be a string, not {reference!r:.40}")
        if reference.startswith("#"):  # for the sake of URIs that urljoin cannot read, such as URNs
            uri, fragment = base, unquote(reference[1:])
        else:
            uri, fragment = joined(base, reference), unquote(urldefrag(reference).fragment)
        if uri not in self.resources:
            for meta_schema in meta_schemas(uri):
                self.add_document(meta_schema)
        if uri not in self.resources:
            raise ConstraintError(
                f"schema refers to {reference[:80]!r}, another document; only references inside it work, so put that "
                "document in $defs, with its $id"
            )
        if uri in self.twice or (uri, fragment) in self.twice:
            raise ConstraintError(f"schema refers to {reference[:80]!r}, and several in it have that name; rename them")
        place = self._at(uri, fragment)
        if place is None:
            raise ConstraintError(f"schema refers to {reference[:80]!r}, which is not in it")
        self.found[base, reference] = place
        return place

    def _at(self, uri: str, fragment: str) -> SchemaPlace | None:
        """Return what a fragment of a resource stands for."""
        schema, base, draft = self.resources[uri], uri, UNDECLARED
        if not fragment.startswith("/"):
            named = self.anchors.get((uri, fragment)) if fragment else schema
            return None if named is None else SchemaPlace(named, uri)
        if id(schema) in self.known:
            draft = self.known[id(schema)].draft
        for step in fragment[1:].split("/"):
            check_deadline()
            key = step.replace("~1", "/").replace("~0", "~")
            try:
                schema = _item(schema, key) if isinstance(schema, list) else schema[key]
            except (LookupError, TypeError):  # TypeError of what has no parts
                return None
            if id(schema) in self.known:
                _, base, draft, _ = self.known[id(schema)]
        return SchemaPlace(schema, base, draft)


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


def meta_schemas(uri: str) -> list[Any]:
    """Return the documents of the draft whose meta-schema, or a part of it, has a URI: to be changed at will."""
    return [json.loads(text) for text in _meta_schemas().get(uri, ())]


@cache
def _meta_schemas() -> dict[str, tuple[str, ...]]:
    registry = jsonschema_specifications.REGISTRY
    found: dict[str, tuple[str, ...]] = {}
    for draft in DRAFTS:
        folder = draft.meta_schema.removesuffix("schema")
        uris = [uri for uri in registry if uri.startswith(folder)]
        texts = tuple(json.dumps(registry.contents(uri)) for uri in uris)
        found |= dict.fromkeys(uris, texts)
    return found
