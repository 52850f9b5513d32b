"""Files of twists: the soft counts that were learned for a constraint, to be used again in another process.

A file is safetensors, so nothing in it is executed or decompressed. Its header has one entry of metadata, which is
JSON of ``TwistHeader``. The tensors are vectors of int64 and float64.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save
from scipy.sparse import csr_array, vstack

from guardwrap.errors import UsageError
from guardwrap.support.files import write_whole
from guardwrap.support.limits import irregular
from guardwrap.twists.automata import Automaton
from guardwrap.twists.state_values import SoftCounts, Values
from guardwrap.twists.tilt import MOST_TILT

MOST_BYTES = 100_000_000
"""The largest file that is read."""

_MOST_HEADER = 100_000
"""The most bytes of a file's header."""

_METADATA = "guardwrap_twist"

_TENSORS = {
    "states": "I64",
    "visits": "I64",
    "ends": "F64",
    "sums": "F64",
    "after": "I64",
    "begins": "I64",
    "tilt": "F64",
}
"""The tensors of a file and their types; see ``_counts``."""

_TYPES = {"I64": np.dtype("<i8"), "F64": np.dtype("<f8")}

_INACCURACY = 1e-3
"""How far the probabilities of a state's next tokens may be from a sum of 1 on average."""

_NONE = "{!r} is no twist for this constraint ({}); give a file that save_twist() wrote for it"

Array = npt.NDArray[Any]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{1,128}$")]


class TwistHeader(BaseModel):
    """What a file of a twist is for."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: Literal[2] = 2  # the version of the format
    constraint: Digest  # the digest of the constraint and its description
    title: Annotated[str, Field(max_length=10_000)]
    automaton: Digest  # the digest of the tables of its automaton, whose states the counts belong to
    # the fingerprint of the model that attempts were drawn from, see ``guardwrap.adapters.card``
    model: dict[str, Any]
    attempts: Annotated[NonNegativeInt, Field(lt=2**53)]  # the attempts that they were learned from


class _Unsound(ValueError):
    """A file is no twist; the message says why, without anything from the file."""


def automaton_digest(automaton: Automaton) -> str:
    """Return the SHA-256 of an automaton's tables, 64 hex digits."""
    digest = hashlib.sha256()
    for array in (automaton.table, automaton.ended, automaton.cut):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def write_twist(path: Path, header: TwistHeader, counts: SoftCounts, tilt: Values | None) -> None:
    """Write a file, or replace it, atomically."""
    states = sorted(counts.visits)
    onward = vstack([csr_array((0, counts.states)), *(counts.onward[state] for state in states)], format="csr")
    onward.sort_indices()
    tensors = {
        "states": np.array(states, dtype=np.int64),
        "visits": np.array([counts.visits[state] for state in states], dtype=np.int64),
        "ends": np.array([counts.ends[state] for state in states], dtype=np.float64),
        "sums": onward.data.astype(np.float64),
        "after": onward.indices.astype(np.int64),
        "begins": onward.indptr.astype(np.int64),
        "tilt": np.zeros(0) if tilt is None else tilt,
    }
    content = save(tensors, metadata={_METADATA: header.model_dump_json()})
    if len(content) > MOST_BYTES:
        raise UsageError(
            f"the twist has {len(content):,} bytes, and {MOST_BYTES:,} are read at most; learn it each time"
        )
    try:
        write_whole(path, [content])
    except OSError as error:
        raise UsageError(f"cannot write the twist {str(path)!r}: {error.strerror}; choose another path") from None


def read_twist(path: Path, states: int) -> tuple[TwistHeader, SoftCounts, Values | None]:
    """Return what a file is for, and the soft counts of an automaton with so many states, and the tilt or None.

    The caller compares what it is for. Errors name the file without its folder, as clients of a server may see them.
    """
    if what := irregular(path):
        raise UsageError(f"cannot read the twist {path.name!r}: it is {what}; give a file that save_twist() wrote")
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its name is not valid"
        raise UsageError(f"cannot read the twist {path.name!r}: {why}; give a file that save_twist() wrote") from None
    try:
        header, tensors = _parts(content)
        return header, _counts(tensors, states), _tilt(tensors["tilt"])
    except _Unsound as unsound:
        raise UsageError(_NONE.format(path.name, unsound)) from None


def _parts(content: bytes) -> tuple[TwistHeader, dict[str, Array]]:
    """Return the header and the tensors of a file."""
    if len(content) > MOST_BYTES:
        raise _Unsound(f"it has more than {MOST_BYTES:,} bytes")
    length = int.from_bytes(content[:8], "little")
    if not 0 < length <= min(_MOST_HEADER, len(content) - 8):
        raise _Unsound("it is not a safetensors file, or incomplete")
    try:
        # Checks names, types, shapes and offsets against the size.
        named = dict(deserialize(content))  # type: ignore[no-untyped-call]
        entries = json.loads(content[8 : 8 + length])
        header = TwistHeader.model_validate_json(entries["__metadata__"][_METADATA])
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError):
        # pydantic's ValidationError is a ValueError
        raise _Unsound("its header is damaged, or another file's") from None
    if set(named) != set(_TENSORS):
        raise _Unsound("it has other tensors")
    if any(named[name]["dtype"] != kind or len(named[name]["shape"]) != 1 for name, kind in _TENSORS.items()):
        raise _Unsound("a tensor has another type or shape")
    return header, {
        name: np.frombuffer(bytes(named[name]["data"]), dtype=_TYPES[kind]) for name, kind in _TENSORS.items()
    }


def _tilt(tilt: Array) -> Values | None:
    """Return a file's tilt within its range; None for no tilt."""
    if not np.isfinite(tilt).all():
        raise _Unsound("a number is not finite")
    return np.clip(tilt, -MOST_TILT, MOST_TILT) if len(tilt) else None


def _counts(tensors: dict[str, Array], states: int) -> SoftCounts:
    """Return the soft counts of an automaton with so many states.

    ``states`` are the states that were visited, with their ``visits``, and the sums of the probabilities that a text
    ``ends`` there. For the state number i of these, ``sums[begins[i] : begins[i + 1]]`` are the sums of the
    probabilities of the tokens that lead to each of the states ``after[begins[i] : begins[i + 1]]``.
    """
    known, visits, ends = tensors["states"], tensors["visits"], tensors["ends"]
    sums, after, begins = tensors["sums"], tensors["after"], tensors["begins"]
    if not (len(known) == len(visits) == len(ends) == len(begins) - 1 and len(sums) == len(after)):
        raise _Unsound("its tensors have different lengths")
    if np.any((known < 0) | (known >= states) | (visits <= 0)) or np.any(known[1:] <= known[:-1]):
        raise _Unsound("its states are not those of the constraint")
    if begins[0] != 0 or begins[-1] != len(sums) or np.any(begins[1:] < begins[:-1]):
        raise _Unsound("its rows do not fit together")
    rows = np.repeat(np.arange(len(known)), np.diff(begins))
    if np.any(after < 0) or np.any(after >= states) or np.any((after[1:] <= after[:-1]) & (rows[1:] == rows[:-1])):
        raise _Unsound("its states are not those of the constraint")
    if not all(np.all(np.isfinite(each)) and np.all(each >= 0) for each in (ends, sums)):
        raise _Unsound("a sum of probabilities is negative, or a number is not finite")
    with np.errstate(over="ignore"):
        totals = (ends + np.bincount(rows, sums, minlength=len(known))) / visits
    if np.any(np.abs(totals - 1) > _INACCURACY):
        raise _Unsound("the probabilities of next tokens do not add up to 1")
    onward = csr_array((sums, after, begins), shape=(len(known), states))
    counts = SoftCounts(states)
    for row, state in enumerate(known.tolist()):
        counts.visits[state], counts.ends[state] = int(visits[row]), float(ends[row])
        counts.onward[state] = onward[[row]]
    counts.close_round()
    return counts
