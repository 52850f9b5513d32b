"""The policy for requests to a model, from the settings and the files that they name. It requires no weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from guardwrap.constraints.files.coerce import catalogue
from guardwrap.environment.package_data import PREFIX
from guardwrap.errors import GuardwrapError, SpecError, UsageError, nearest
from guardwrap.proposals import Twisted
from guardwrap.serve.request_policy import RequestPolicy
from guardwrap.serve.server_settings import ModelSettings, ServerSettings, read_named

if TYPE_CHECKING:
    from guardwrap.proposals import Adapter


def policies_of(settings: ServerSettings) -> dict[str, RequestPolicy]:
    """Read the files that the settings name, and return the policy for requests to each model, by its name.

    Each model has constraints of its own, also if several models use the same files.
    """
    policies = {}
    for name, model in settings.served_models.items():
        try:
            policies[name] = _policy((name, *model.aliases), model, settings)
        except GuardwrapError as error:
            if not settings.models:
                raise
            raise SpecError(f"models: {name}: {error}") from None
    return policies


def _policy(names: tuple[str, ...], model: ModelSettings, settings: ServerSettings) -> RequestPolicy:
    named = read_named(model)
    always = []
    for name in model.always:
        if name not in named and not name.startswith(PREFIX):
            raise SpecError(f"always: there is no constraint file {name!r}{nearest(name, named)} in the folder")
        always.append(named[name] if name in named else catalogue(name.removeprefix(PREFIX)))
    return RequestPolicy(
        models=names,
        named=named,
        always=tuple(always),
        adapters=model.adapters,
        proposals=model.proposals,
        repair=model.repair,
        classifiers=model.classifiers,
        limits=settings.limits_of(model),
    )


def adapters_of(policy: RequestPolicy) -> list[Adapter]:
    """Return the adapters that requests to a model may use, each once."""
    adapters = [*policy.adapters.values(), *(file.adapter for file in policy.files if file.adapter is not None)]
    return list(dict.fromkeys(adapters))


def require_files(name: str, model: ModelSettings, policy: RequestPolicy) -> None:
    """Require the files that a model will need when it is loaded later: its configuration, adapters and twists."""
    from guardwrap.adapters.loaded import require_adapter  # peft takes a second to import
    from guardwrap.pipelines.loading import require_model

    try:
        require_model(model.model)
        for adapter in adapters_of(policy) + ([] if model.adapter is None else [model.adapter]):
            require_adapter(adapter)
        for proposal in policy.proposals.values():
            learned = proposal.learned if isinstance(proposal, Twisted) else None
            if learned is not None and not Path(learned).is_file():
                raise UsageError(f"there is no file {str(learned)!r} of a twist; save one with save_twist()")
    except GuardwrapError as error:
        raise UsageError(f"models: {name}: {error}") from None
