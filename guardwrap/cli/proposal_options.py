"""What attempts are drawn from, by the command line and the constraint file."""

from __future__ import annotations

from typing import Any

from guardwrap.cli.signals import ends_at_once
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.errors import UsageError
from guardwrap.proposals import Adapter, Masked, Prompt, merge_proposals

__all__ = ["describe_proposal", "proposed_by"]


def proposed_by(
    file: ConstraintFile,
    *,
    proposal: str | None = None,
    masked: bool = False,
    adapter: str | None = None,
    none: bool = False,
    served: bool = False,
) -> tuple[Any, Any]:
    """Return a proposal and an adapter, as ``GuardedGenerator`` takes them; False for none, whatever the file says.

    Parameters
    ----------
    file
        What the constraint file says.
    proposal, masked, adapter, none
        The options of the command line, which win.
    served
        Whether the model is on a server, which has adapters by names of its own.

    Raises
    ------
    UsageError
        If they do not go together.
    """
    others = {"--proposal": proposal is not None, "--masked": masked, "--adapter": adapter is not None}
    if none and any(others.values()):
        named = " and ".join(flag for flag, is_given in others.items() if is_given)
        raise UsageError(f"--no-proposal draws from the model itself, and not by {named}; leave it, or {named}, out")
    if none:
        return False, False
    told = None if proposal is None else Prompt(proposal)
    near = (told, adapter if adapter is None or served else Adapter(adapter))
    try:
        found, drawing = merge_proposals(near, (file.proposal, file.adapter))
    except UsageError:
        raise UsageError("attempts come from --proposal or from --adapter, not both; leave one of them out") from None
    return Masked(found) if masked and not isinstance(found, Masked) else found, drawing


def describe_proposal(proposal: Any, adapter: Any, constraint: Constraint, *, served: bool = False) -> str | None:
    """Say what reports will call what attempts are drawn from, without loading it.

    Parameters
    ----------
    proposal, adapter
        As ``proposed_by`` returns them.
    constraint
        What texts satisfy.
    served
        As ``proposed_by`` has it.

    Raises
    ------
    AdapterError
        If its files cannot be read.
    """
    if served:
        with ends_at_once():
            from guardwrap.session.endpoint_session import endpoint_proposal_of

        source = endpoint_proposal_of(proposal, adapter)
        return None if source is None else source.in_words(constraint)
    masked = isinstance(proposal, Masked)
    inner = proposal.proposal if masked else proposal
    words = str(inner) if inner else None
    if adapter:
        with ends_at_once():
            from guardwrap.adapters import loaded  # torch comes with it

        words = loaded.describe_adapter(adapter, constraint)
    return f"{words or 'the model itself'}, masked" if masked else words
