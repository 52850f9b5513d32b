"""Files of twists: the soft counts that were learned for a constraint, to be used again in another process."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError
from scipy.sparse import csr_array, vstack

from guardwrap.environment.atomic_files import write_whole
from guardwrap.errors import UsageError
from guardwrap.twists.automata import Automaton
from guardwrap.twists.state_values import SoftCounts, Values

__all__ = ["TwistHeader", "automaton_digest", "read_twist", "write_twist"]

MOST_BYTES = 200_000_000
"""The largest file that is read, and the most that its parts may take in memory."""

_ARRAYS = {"states": "i", "visits": "i", "ends": "f", "data": "f", "indices": "i", "indptr": "i", "tilt": "f"}
"""The arrays of a file, and whether each has integers or floats."""


class TwistHeader(BaseModel):
    """What a file of a twist is for.

    Parameters
    ----------
    format
        The version of the format.
    constraint, title
        The digest of the constraint and its description.
    automaton
        The digest of the tables of its automaton, whose states the counts belong to.
    model
        The fingerprint of the model that attempts were drawn from, see ``guardwrap.adapters.fingerprints``.
    tokens
        The most tokens of a text when the counts were learned.
    attempts
        The attempts that they were learned from.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True, frozen=True)

    format: int = 1
    constraint: str
    title: str
    automaton: str
    model: dict[str, Any]
    tokens: PositiveInt
    attempts: NonNegativeInt


def automaton_digest(automaton: Automaton) -> str:
    """Return the SHA-256 of an automaton's tables, 64 hex digits."""
    digest = hashlib.sha256()
    for array in (automaton.table, automaton.ended, automaton.cut):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def write_twist(path: Path, header: TwistHeader, counts: SoftCounts, tilt: Values | None) -> None:
    """Write a file, or replace it, atomically.

    Raises
    ------
    UsageError
        If it cannot be written.
    """
    states = sorted(counts.visits)
    onward = vstack([csr_array((0, counts.states)), *(counts.onward[state] for state in states)], format="csr")
    content = io.BytesIO()
    np.savez_compressed(
        content,
        header=np.frombuffer(header.model_dump_json().encode(), dtype=np.uint8),
        states=np.array(states, dtype=np.int64),
        visits=np.array([counts.visits[state] for state in states], dtype=np.int64),
        ends=np.array([counts.ends[state] for state in states], dtype=np.float64),
        data=onward.data,
        indices=onward.indices.astype(np.int64),
        indptr=onward.indptr.astype(np.int64),
        tilt=np.zeros(0) if tilt is None else tilt,
    )
    try:
        write_whole(path, [content.getvalue()])
    except OSError as error:
        raise UsageError(f"cannot write the twist {str(path)!r}: {error.strerror}; choose another path") from None


def read_twist(path: Path, states: int) -> tuple[TwistHeader, SoftCounts, Values | None]:
    """Read a file for an automaton.

    Parameters
    ----------
    path
        The file.
    states
        The number of the automaton's states.

    Returns
    -------
    TwistHeader
        What it is for. The caller compares that.
    SoftCounts, numpy.ndarray or None
        What was learned: the soft counts, and the tilt of each token in nats, ``[tokens]``; None for no tilt.

    Raises
    ------
    UsageError
        If it cannot be read, is no file of a twist, or has counts of states that the automaton lacks.
    """
    try:
        # Nothing in the file is executed: arrays of objects, which numpy would unpickle, are errors.
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > MOST_BYTES:
                raise ValueError("it is too large")
        with np.load(path, allow_pickle=False) as arrays:
            header = TwistHeader.model_validate_json(arrays["header"].tobytes())
            named = {name: arrays[name] for name in _ARRAYS}
        tilt = named["tilt"]
        return header, _counts(named, states), tilt if len(tilt) else None
    except OSError as error:
        raise UsageError(f"cannot read the twist {str(path)!r}: {error.strerror or 'it is damaged'}") from None
    except (KeyError, ValueError, ValidationError, zipfile.BadZipFile, json.JSONDecodeError):
        raise UsageError(
            f"{str(path)!r} is no twist for this constraint; give a file that save_twist() wrote for it"
        ) from None


def _counts(arrays: dict[str, Any], states: int) -> SoftCounts:
    """Return the counts of a file's arrays; ValueError if they are not counts of so many states."""
    if any(array.ndim != 1 or array.dtype.kind != _ARRAYS[name] for name, array in arrays.items()):
        raise ValueError("an array has another shape or type")
    known, visits, ends = arrays["states"], arrays["visits"], arrays["ends"]
    sound = len(known) == len(visits) == len(ends) and np.all(np.diff(known) > 0) and np.all(visits > 0)
    if not sound or np.any(known < 0) or np.any(known >= states):
        raise ValueError("the states are not those of an automaton of this size")
    sums = arrays["data"]
    if not all(np.all(np.isfinite(each)) and np.all(each >= 0) for each in (ends, sums)) or not np.all(
        np.isfinite(arrays["tilt"])
    ):
        raise ValueError("a sum of probabilities is negative, or a number is not finite")
    onward = csr_array((sums, arrays["indices"], arrays["indptr"]), shape=(len(known), states))
    onward.check_format(full_check=True)
    counts = SoftCounts(states)
    for row, state in enumerate(known.tolist()):
        counts.visits[state], counts.ends[state] = int(visits[row]), float(ends[row])
        counts.onward[state] = onward[[row]]
    counts.close_round()
    return counts
