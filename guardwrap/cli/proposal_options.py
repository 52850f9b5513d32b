"""Proposal and adapter of a command, from its options and the constraint file."""

from __future__ import annotations

from typing import Any

from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.errors import UsageError
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted, merge_proposals


def proposed_by(
    file: ConstraintFile,
    *,
    proposal: str | None = None,
    masked: bool = False,
    twisted: bool = False,
    adapter: str | None = None,
    none: bool = False,
    served: bool = False,
) -> tuple[Any, Any]:
    """Return the proposal and the adapter for ``GuardedGenerator``. False means none, even if the file has one."""
    others = {
        "--proposal": proposal is not None,
        "--masked": masked,
        "--twisted": twisted,
        "--adapter": adapter is not None,
    }
    if none and any(others.values()):
        named = " and ".join(flag for flag, is_given in others.items() if is_given)
        raise UsageError(f"--no-proposal draws from the model itself; leave out either --no-proposal or {named}")
    if none:
        return False, False
    if masked and twisted:
        raise UsageError("give either --masked or --twisted, not both")
    prompt = None if proposal is None else Prompt(proposal)
    from_options = (prompt, adapter if adapter is None or served else Adapter(adapter))
    try:
        merged, merged_adapter = merge_proposals(from_options, (file.proposal, file.adapter))
    except UsageError:
        raise UsageError("give either --proposal or --adapter, not both") from None
    kind = Masked if masked else Twisted if twisted else None
    if kind is None or isinstance(merged, kind):
        return merged, merged_adapter
    # The option replaces the file's mask or twist.
    return kind(merged.proposal if isinstance(merged, Masked | Twisted) else merged), merged_adapter
