"""Constraints as plain data, in the form of a constraint file's field ``constraint``."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag, TypeAdapter

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.combinators import All
from guardwrap.documents.validation import validated


def _all_of(several: list[Constraint]) -> Constraint:
    return several[0] if len(several) == 1 else All(several)


Whole: Any = Annotated[
    Annotated[Constraint, Tag("one constraint")]
    | Annotated[list[Constraint], Field(min_length=1), AfterValidator(_all_of), Tag("several constraints")],
    Discriminator(lambda value: "several constraints" if isinstance(value, list) else "one constraint"),
]
"""The pydantic type of the field ``constraint``: one constraint, or a list of constraints that must all hold."""


@cache
def _a_constraint() -> TypeAdapter[Constraint]:
    return TypeAdapter(Whole)


def read_constraint(data: Any, *, allow_code: bool = False) -> Constraint:
    """Read a constraint from plain JSON types, in the form of a constraint file's field ``constraint``.

    Parameters
    ----------
    data
        A mapping, ``"catalogue:NAME"``, or a list of these, all of which must hold.
    allow_code
        Whether it may name Python functions (``kind: python``), which are then imported and run.

    Raises
    ------
    Invalid
        If it is invalid; the error has the location.
    """
    return validated(data, _a_constraint(), allow_code=allow_code)
