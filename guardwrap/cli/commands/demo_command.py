"""``guardwrap demo``: show constraints on the embedded model, what they cost, and how to make them cheaper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from guardwrap.budget import Budget
from guardwrap.cli.options import Model, Verbose
from guardwrap.cli.shared import load_generator, show
from guardwrap.constraints import Constraint, JSONSchema, Keyword, Regex
from guardwrap.proposals import Prompt


@dataclass(frozen=True)
class Scene:
    """One prompt with one constraint."""

    title: str  # the heading
    prompt: str
    chat: bool  # whether to pass it as a user message to models that have a chat template
    constraint: Constraint | str  # the constraint, or its name in the catalogue
    count: int  # number of texts
    max_new_tokens: int  # maximum tokens per text

    def prompts(self, chat: bool) -> Any:
        """Return the prompt to pass to ``GuardedGenerator``."""
        return [{"role": "user", "content": self.prompt}] if self.chat and chat else self.prompt

    def code(self, model: str, seed: int, chat: bool, shown: str = "guarded({})", *also: str) -> str:
        """Return the equivalent Python code. ``shown`` is the expression to print; ``also`` are further arguments."""
        names = [] if isinstance(self.constraint, str) else sorted(_names(self.constraint))
        names += ["Prompt"] if any("Prompt(" in each for each in also) else []
        several = [f"num_return_sequences={self.count}"] if self.count > 1 else []
        arguments = [repr(self.prompts(chat)), f"max_new_tokens={self.max_new_tokens}", *several, *also]
        return (
            f"from guardwrap import {', '.join(['GuardedGenerator', *names])}\n"
            f"guarded = GuardedGenerator({model!r}, {self.constraint!r}, seed={seed})\n"
            f"print({shown.format(', '.join(arguments))})"
        )


SCENES = (
    Scene(
        "An answer that mentions a word and has no comma",
        "Describe the sea in one short sentence.",
        True,
        Keyword("vast") & ~Regex(","),
        1,
        40,
    ),
    Scene(
        "No e-mail address, telephone number or handle, where the prompt asks for one",
        "You can reach our support team by",
        False,
        "catalogue:no-contact-details",
        2,
        30,
    ),
    Scene(
        "A JSON object with these two fields, and nothing around it",
        'Give a JSON object with the keys "city" and "country" for the Eiffel Tower. Nothing else.',
        True,
        JSONSchema({"type": "object", "required": ["city", "country"]}, name="city and country"),
        1,
        40,
    ),
)
_BUDGET = Budget(max_attempts=64)
_PILOT = 24
_HINT = Prompt("{prompt} Begin with { and end with }.")


def demo(
    seed: Annotated[int, typer.Option(help="Random seed of the texts.")] = 1,
    model: Model = "local",
    verbose: Verbose = 0,
) -> None:
    """Show constraints on a real model: texts with their reports, a cost estimate, and a cheaper proposal.

    Each part ends with the equivalent Python code.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    console.print(
        "Every text below satisfies its constraint, and is sampled from the model's own distribution under it."
    )
    console.print(f"Loading {'the embedded model' if model == 'local' else model} ...", style="dim")

    guarded = load_generator(model, SCENES[0].constraint, budget=_BUDGET)
    chat = getattr(guarded.tokenizer, "chat_template", None) is not None
    for number, scene in enumerate(SCENES, start=1):
        console.print(f"\n{number}. {scene.title}", style="bold")
        console.print(Text.assemble(("   prompt      ", "dim"), scene.prompt), soft_wrap=True)
        console.print(Text.assemble(("   constraint  ", "dim"), str(scene.constraint)), soft_wrap=True)
        outcome = guarded.run(
            scene.prompts(chat),
            constraints=scene.constraint,
            seed=seed,
            num_return_sequences=scene.count,
            max_new_tokens=scene.max_new_tokens,
        )[0]
        show(console, outcome)
        console.print(f"\n{scene.code(model, seed, chat)}", style="cyan", soft_wrap=True)

    last, number = SCENES[-1], len(SCENES)
    options: dict[str, Any] = {"constraints": last.constraint, "seed": seed, "max_new_tokens": last.max_new_tokens}
    console.print(f"\n{number + 1}. What a hundred of these would cost, estimated from a few attempts", style="bold")
    plan = guarded.plan(last.prompts(chat), pilot=_PILOT, num_return_sequences=100, **options)
    console.print(Text(str(plan)), soft_wrap=True)
    many = ("num_return_sequences=100", f"pilot={_PILOT}")
    console.print(f"\n{last.code(model, seed, chat, 'guarded.plan({})', *many)}", style="cyan", soft_wrap=True)

    console.print(f"\n{number + 2}. The same object, with a hint in the prompt: a proposal", style="bold")
    console.print(Text.assemble(("   the hint    ", "dim"), str(_HINT.template)), soft_wrap=True)
    (outcome,) = guarded.run(last.prompts(chat), proposal=_HINT, **options)
    show(console, outcome)
    console.print(
        "   With sampler='qrs', the texts follow the model's own distribution again.", style="dim", soft_wrap=True
    )
    code = last.code(model, seed, chat, "guarded.run({})[0].report", f"proposal={_HINT!r}")
    console.print(f"\n{code}", style="cyan", soft_wrap=True)


def _names(constraint: Constraint) -> set[str]:
    """Return the names of the classes in the ``repr`` of a constraint."""
    return {name for name in ("JSONSchema", "Keyword", "Regex") if f"{name}(" in repr(constraint)}
