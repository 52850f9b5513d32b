"""Proposal and adapter of a command, from its options and the constraint file."""

from __future__ import annotations

from typing import Any

from guardwrap.cli.signals import ends_at_once
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.errors import UsageError
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted, merge_proposals

__all__ = ["describe_proposal", "proposed_by"]


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
    """Return the proposal and the adapter for ``GuardedGenerator``. False means none, even if the file has one.

    Parameters
    ----------
    file
        The constraint file.
    proposal, masked, twisted, adapter, none
        Options of the command line, which take precedence over the file.
    served
        Whether the model is on a server. Adapters are then names on this server.

    Raises
    ------
    UsageError
        If the options contradict each other.
    """
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


def describe_proposal(proposal: Any, adapter: Any, constraint: Constraint, *, served: bool = False) -> str | None:
    """Return how reports will describe the proposal, without loading it.

    Parameters
    ----------
    proposal, adapter
        The result of ``proposed_by``.
    constraint
        The constraint of the texts.
    served
        Whether the model is on a server.

    Raises
    ------
    AdapterError
        If the files of the adapter cannot be read.
    """
    if served:
        with ends_at_once():
            from guardwrap.session.endpoint_session import endpoint_proposal_of

        source = endpoint_proposal_of(proposal, adapter)
        return None if source is None else source.in_words(constraint)
    shaped = {Masked: "masked", Twisted: "twisted"}.get(type(proposal))
    inner = proposal.proposal if shaped else proposal
    words = str(inner) if inner else None
    if adapter:
        with ends_at_once():
            from guardwrap.adapters import loaded  # imports torch

        words = loaded.describe_adapter(adapter, constraint)
    return f"{words or 'the model itself'}, {shaped}" if shaped else words
