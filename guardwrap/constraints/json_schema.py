"""A constraint on JSON: the text, or the fenced block in it, parses and validates."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from referencing.exceptions import Unresolvable

from guardwrap.constraints import json_text
from guardwrap.constraints.base import Monitor, Verdict, require
from guardwrap.constraints.json_reading import Plans, Reading
from guardwrap.constraints.json_subschemas import Schema
from guardwrap.constraints.limits import look
from guardwrap.constraints.schemas import read_schema
from guardwrap.constraints.text import TextConstraint, require_choice
from guardwrap.constraints.views import VIEWS, View
from guardwrap.errors import CheckFailed, ConstraintError

__all__ = ["JSONSchema"]


@dataclass(frozen=True, eq=False, repr=False)
class JSONSchema(TextConstraint):
    """The text is JSON that validates (draft 2020-12, through ``jsonschema``).

    Parameters
    ----------
    schema
        The schema; ``{}`` or True accepts any JSON. References must stay inside it.
    where
        ``"text"``: the whole text is JSON; ``"fenced"``: the text holds exactly one fenced block (three
        backticks, with or without ``json``), and that is JSON.
    on
        The view of the text that is judged.
    whitespace
        ``"any"``: as JSON allows; ``"compact"``: none outside strings but a single space after a colon or comma, so
        that a text cannot spend its tokens on white space. What ``json.dumps`` writes without ``indent`` is compact.
    name
        What reports call it.

    Raises
    ------
    ConstraintError
        If the schema is invalid.

    Notes
    -----
    NaN and infinities are refused, as in RFC 8259, and so are numbers beyond the range of a double, such as 1e400:
    they are not JSON that can be read. So are objects that have a key twice, of which RFC 8259 leaves open what they
    mean: else no property would be settled before the end. Expressions in the schema are those of the ``regex``
    module. ``format`` and ``$schema`` are not looked at: a schema is one of draft 2020-12. References begin with ``#``.

    Where the whole text is judged as JSON, verdicts on prefixes look at the whole schema: an attempt ends where a type,
    a key, a word of an enum, a number that is finished … leaves no way on. ``unevaluatedItems`` and
    ``unevaluatedProperties`` are looked at when the bracket closes.

    Every step into a schema or a text takes some of Python's stack. Where that ends, the check raises CheckFailed: with
    Python's usual limit at 100 to 200 levels of a text whose schema refers to itself.

    Examples
    --------
    >>> JSONSchema({"type": "object", "required": ["name"]}).accepts('{"name": "Ada"}')
    True
    """

    schema: dict[str, Any] | bool
    where: Literal["text", "fenced"] = field(default="text", kw_only=True)
    on: View = field(default="completion", kw_only=True)
    whitespace: Literal["any", "compact"] = field(default="any", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["json_schema"] = field(default="json_schema", kw_only=True)

    def __post_init__(self) -> None:
        require(isinstance(self.schema, dict | bool), "schema must be a mapping or a bool")
        try:
            # A private copy, and proof that the schema is JSON.
            object.__setattr__(self, "schema", json_text.load(json.dumps(self.schema, allow_nan=False)))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ConstraintError(f"schema is not JSON: {type(error).__name__}") from None
        self.validator  # noqa: B018  # what is wrong with the schema is reported here, not at the first text
        require_choice(self.where, ("text", "fenced"), "where")
        require_choice(self.on, VIEWS, "on")
        require_choice(self.whitespace, ("any", "compact"), "whitespace")

    @cached_property
    def validator(self) -> Any:
        """What judges values; its references are looked up and its expressions compiled."""
        return read_schema(self.schema)

    def __getstate__(self) -> dict[str, Any]:
        # The validator is not to be pickled; a copy makes its own.
        return {key: value for key, value in self.__dict__.items() if key not in ("validator", "_reading")}

    def holds(self, text: str) -> bool:
        """Parse and validate one string."""
        if self.where == "fenced":
            blocks = fenced(text)
            if len(blocks) != 1:
                return False
            text = blocks[0]
        look()
        try:
            value = json_text.load(text)
        except (
            ValueError,
            OverflowError,
            RecursionError,
        ):  # not JSON, or beyond reading: digits, depth
            return False
        if self.whitespace == "compact" and not json_text.is_compact(text):
            return False
        try:
            return bool(self.validator.is_valid(value))
        except RecursionError:
            raise CheckFailed(self.title, "got a text nested too deep for its schema") from None
        except Unresolvable:
            raise CheckFailed(self.title, "has a reference that cannot be followed from everywhere") from None

    def prefix_verdict(self, prefix: str) -> Verdict:
        """VIOLATED where no JSON text that satisfies the schema begins like this, as far as that can be known."""
        return Verdict.UNDECIDED if self.where == "fenced" else self._reading.read(prefix).verdict

    def monitor(self) -> Monitor:
        """Return one whose verdicts cost what is new, where the whole text is JSON."""
        return self._reading if self.where == "text" and self.on == "completion" else super().monitor()

    @cached_property
    def _reading(self) -> Reading:
        spelling = json.dumps(self.schema)  # in one resource each anchor stands once
        dynamic = '"$dynamicRef"' in spelling and '"$id"' in spelling
        return Reading(Plans(Schema(self.validator, dynamic=dynamic)), compact=self.whitespace == "compact")


def fenced(text: str) -> list[str]:
    """Return what stands between lines of three backticks, the first of two perhaps with ``json``."""
    blocks: list[str] = []
    lines = text.split("\n")
    first: int | None = None  # line of the block that is open
    for number, line in enumerate(lines):
        bare = line.strip(" \t")
        if first is not None and bare == "```":
            blocks.append("\n".join(lines[first:number]))
            first = None
        elif first is None and bare in ("```", "```json"):
            first = number + 1
    return blocks
