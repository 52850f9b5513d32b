"""References in a JSON Schema, resolved once, when the schema is read. Nothing is ever fetched.

A schema is a document of several resources: the schema itself, the subschemas with an ``$id``, and the meta-schemas of
drafts that it refers to. The library ``referencing`` is not used, because in three cases it resolves a reference to
another schema than the draft says: it follows a ``$ref`` to a dynamic anchor dynamically, forgets resources that were
entered without a reference, and uses the wrong base URI below an anchor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

import jsonschema_specifications

from guardwrap.constraints.json.drafts import DRAFT_2019, DRAFTS, UNDECLARED, Draft, draft_of, names_of, subschemas
from guardwrap.errors import ConstraintError
from guardwrap.support.time_limits import check_deadline

HERE = "urn:guardwrap:schema"  # the URI of a schema without an $id
_REFERRING = ("$ref", "$dynamicRef", "$recursiveRef")


class SchemaPlace(NamedTuple):
    """A schema and its location."""

    contents: Any  # the schema
    base: str  # the URI of its resource
    draft: Draft = UNDECLARED  # the draft of the schema around it


class Known(NamedTuple):
    """A schema that has been added to the document."""

    schema: dict[str, Any]
    base: str  # the URI of its resource
    draft: Draft
    is_named: bool  # whether the URI is that of the schema itself, not of a schema around it


class Resolved(NamedTuple):
    """The target of a reference."""

    contents: Any  # the schema
    resolver: Scope  # the scope for references in it


@dataclass(frozen=True, slots=True)
class Scope:
    """The validator's position in the document. It replaces ``referencing.Resolver`` and has the same method names."""

    references: References  # the references of the whole document
    _base_uri: str  # the URI of the current resource
    # the dynamic scope: of each dynamic anchor the name, and the URI of the first resource so far that has it
    anchors: tuple[tuple[str, str], ...]
    # Whether objects must have their keys in the order of ``properties``. False in subschemas that are only tests, such
    # as ``not``.
    ordered: bool = False

    def unordered(self) -> Scope:
        """Return the same position, where any order of keys is valid."""
        return replace(self, ordered=False) if self.ordered else self

    def into(self, place: SchemaPlace) -> Resolved:
        """Enter a schema."""
        if place.base == self._base_uri:
            return Resolved(place.contents, self)
        names = {name for name, _ in self.anchors}
        new = [(name, place.base) for name in self.references.dynamic.get(place.base, ()) if name not in names]
        return Resolved(place.contents, replace(self, _base_uri=place.base, anchors=(*self.anchors, *new)))

    def within(self, schema: Any) -> Scope:
        """Enter a subschema of the current schema."""
        if isinstance(schema, bool) or "$id" not in schema:
            return self
        return self.into(SchemaPlace(schema, schema["$id"])).resolver  # modernize has made the $id absolute

    def in_subresource(self, resource: Any) -> Scope:
        """Enter a subschema, for ``descend`` of ``jsonschema``."""
        return self.within(resource.contents)

    def lookup(self, reference: str) -> Resolved:
        """Follow a ``$ref``."""
        return self.into(self.references.found[self._base_uri, reference])

    def lookup_dynamic(self, reference: str) -> Resolved:
        """Follow a ``$dynamicRef``: if its target is a dynamic anchor, to the outermost anchor of the same name."""
        place = self.references.found[self._base_uri, reference]
        dynamic, name = self.references.dynamic, unquote(urldefrag(reference).fragment)
        if name in dynamic.get(place.base, ()):
            outermost = dict(self.anchors).get(name, place.base)
            place = SchemaPlace(dynamic[outermost][name], outermost)
        return self.into(place)


@dataclass(eq=False, slots=True)
class References:
    """The resources and anchors of a document, and the targets of its references."""

    # the schemas that have been added, by Python's ``id()`` of each
    known: dict[int, Known] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)  # the resources, by URI
    # the anchors, including each ``$dynamicAnchor``, by the URI of their resource and their name
    anchors: dict[tuple[str, str], Any] = field(default_factory=dict)
    # The dynamic anchors, by URI and by name. A ``$recursiveAnchor`` is a dynamic anchor with an empty name.
    dynamic: dict[str, dict[str, Any]] = field(default_factory=dict)
    # the targets of references, by the URI of the resource that contains the reference and the reference itself
    found: dict[tuple[str, str], SchemaPlace] = field(default_factory=dict)
    # URIs and anchors that several schemas of older drafts share. This is an error only if a reference uses them.
    twice: set[Any] = field(default_factory=set)
    unread: list[Known] = field(default_factory=list)  # added schemas whose references are not resolved yet

    def add_document(self, schema: Any) -> Scope:
        """Add a whole schema, and return the scope at its root."""
        draft = draft_of(schema, UNDECLARED)
        uri = names_of(schema, draft)[0] if isinstance(schema, dict) else None
        base = HERE if uri is None else joined("", uri)
        if uri is None:
            self.resources[base] = schema
        self.add(SchemaPlace(schema, HERE if uri is None else ""))
        return Scope(self, base, tuple((name, base) for name in self.dynamic.get(base, ())))

    def add(self, top: SchemaPlace, *, names: bool = True) -> None:
        """Add a schema and its subschemas.

        ``names``: whether the schemas may have URIs and anchors. False for a schema in a place where none is
        expected, such as an ``enum``: the drafts leave open what references in it mean if it also has names.
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
            added = self.known[id(schema)] = Known(schema, base, draft, is_named)
            self.unread.append(added)
            todo += [SchemaPlace(container[key], base, draft) for _, container, key in subschemas(schema, draft)]
        if "$dynamicAnchor" in unexpected or (unexpected and refers):  # otherwise the names change nothing
            key = min(unexpected)
            raise ConstraintError(
                f"schema refers to a subschema with {key} in a place where no schema is expected; move it to $defs"
            )

    def _add_dynamic(self, schema: dict[str, Any], base: str, draft: Draft) -> None:
        if "$dynamicAnchor" in schema and "$dynamicAnchor" in draft.keywords:
            self.dynamic.setdefault(base, {})[schema["$dynamicAnchor"]] = schema
        if draft is DRAFT_2019 and schema.get("$recursiveAnchor"):
            if self.resources.get(base) is not schema:
                raise ConstraintError("a subschema with $recursiveAnchor has no $id; give it one")
            self.dynamic.setdefault(base, {})[""] = schema

    def _put(self, table: dict[Any, Any], key: Any, schema: Any, name: str, draft: Draft) -> None:
        if table.setdefault(key, schema) is not schema:
            if not draft.ref_is_alone:
                raise ConstraintError(f"two subschemas have the same {name}; rename one of them")
            self.twice.add(key)

    def follow(self, reference: str, base: str) -> SchemaPlace:
        """Return the target of a reference. If it is in a place where no schema is expected, the caller must add it."""
        if not isinstance(reference, str):  # the meta-schema of draft 4 allows other types
            raise ConstraintError(f"invalid JSON Schema: $ref must be a string, not {reference!r:.40}")
        if reference.startswith("#"):  # urljoin cannot resolve fragments of some URIs, such as URNs
            uri, fragment = base, unquote(reference[1:])
        else:
            uri, fragment = joined(base, reference), unquote(urldefrag(reference).fragment)
        if uri not in self.resources:
            for meta_schema in meta_schemas(uri):
                self.add_document(meta_schema)
        if uri not in self.resources:
            raise ConstraintError(
                f"schema refers to {reference[:80]!r}, another document; only references within the schema are "
                "supported, so put that document in $defs, with its $id"
            )
        if uri in self.twice or (uri, fragment) in self.twice:
            raise ConstraintError(
                f"schema refers to {reference[:80]!r}, and several subschemas have that name; rename them"
            )
        place = self._at(uri, fragment)
        if place is None:
            raise ConstraintError(f"schema refers to {reference[:80]!r}, which is not in it")
        self.found[base, reference] = place
        return place

    def _at(self, uri: str, fragment: str) -> SchemaPlace | None:
        """Return the schema that a fragment of a resource refers to; None if there is none."""
        schema, base, draft = self.resources[uri], uri, UNDECLARED
        if not fragment.startswith("/"):
            named = self.anchors.get((uri, fragment)) if fragment else schema
            return None if named is None else SchemaPlace(named, uri)
        if id(schema) in self.known:
            draft = self.known[id(schema)].draft
        for key in pointer_keys(fragment):
            check_deadline()
            try:
                schema = _item(schema, key) if isinstance(schema, list) else schema[key]
            except (LookupError, TypeError):  # TypeError if the value is not a mapping or list
                return None
            if id(schema) in self.known:
                _, base, draft, _ = self.known[id(schema)]
        return SchemaPlace(schema, base, draft)


def pointer_keys(pointer: str) -> list[str]:
    """Return the keys of a JSON Pointer that begins with a slash (RFC 6901)."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]


def _item(items: list[Any], key: str) -> Any:
    """Return the item for one step of a JSON pointer; raise LookupError for an invalid index, such as 01 or ١."""
    if not (key.isascii() and key.isdigit() and len(key) < 10 and (key == "0" or key[0] != "0")):
        raise LookupError(key)
    return items[int(key)]


def joined(base: str, reference: str) -> str:
    """Return the absolute URI of a reference, without its fragment."""
    try:
        return urldefrag(urljoin(base, reference)).url
    except ValueError as error:
        raise ConstraintError(
            f"invalid JSON Schema: an $id or a reference in it, {reference[:80]!r}: {str(error)[:100]}"
        ) from None


def meta_schemas(uri: str) -> list[Any]:
    """Return new copies of all meta-schema documents of the draft to which a URI belongs; empty for other URIs."""
    return [json.loads(text) for text in _meta_schemas().get(uri, ())]


@cache
def _meta_schemas() -> dict[str, tuple[str, ...]]:
    registry = jsonschema_specifications.REGISTRY
    documents: dict[str, tuple[str, ...]] = {}
    for draft in DRAFTS:
        folder = draft.meta_schema.removesuffix("schema")
        uris = [uri for uri in registry if uri.startswith(folder)]
        texts = tuple(json.dumps(registry.contents(uri)) for uri in uris)
        documents |= dict.fromkeys(uris, texts)
    return documents
