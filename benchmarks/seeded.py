"""Whether a change keeps texts, reports and work the same: a record of seeded calls through every entry point.

    python benchmarks/seeded.py --model models/stories15M --out before.json
    python benchmarks/seeded.py --model models/stories15M --out after.json --compare before.json

Texts, token ids, log-probabilities, reports without their seconds, and row-steps (rows × passes of the model) are
compared byte for byte. If anything differs, it is printed, and the exit code is 1. Only the public API is used, so that
the script keeps working when the code that it checks changes.
"""

import argparse
import dataclasses
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from guardwrap import (
    Adapter,
    Budget,
    Fallback,
    Finished,
    GuardedGenerator,
    JSONSchema,
    Keyword,
    Length,
    Prompt,
    Regex,
    imh,
    load_local,
    qrs,
)
from guardwrap.testing import llama_world, table_world

CHAT = [{"role": "user", "content": "Write one sentence about a coffee mug."}]
STORY = "Once upon a time, there was a"
OPEN: dict[str, Any] = {"temperature": 1.0, "top_k": 0}


def outcomes(found: Any) -> Any:
    """Return everything in the outcomes of a run, except seconds."""
    rows = []
    for outcome in found:
        report = dataclasses.replace(outcome.report, usage=dataclasses.replace(outcome.report.usage, seconds=0.0))
        draws = [[list(draw.token_ids), draw.finished, repr(draw.log_proposal)] for draw in outcome.draws]
        rows.append({"texts": outcome.texts, "draws": draws, "report": report.to_dict(), "said": str(report)})
    return rows


def cases(story: str, steps: "Steps") -> dict[str, Callable[[], Any]]:
    """Name to call. Models are loaded once; each call makes its own wrapper."""
    chat_model, chat_tokens = load_local()
    story_model = transformers.AutoModelForCausalLM.from_pretrained(story, dtype=torch.float32)
    other_model = transformers.AutoModelForCausalLM.from_pretrained(story, dtype=torch.float32)
    story_tokens = transformers.AutoTokenizer.from_pretrained(story)
    llama, table = llama_world(letters="abcdef .\n", max_new_tokens=6), table_world(letters="ab ", max_new_tokens=5)
    half = load_local()[0].to(torch.bfloat16)
    for model in (chat_model, story_model, other_model, half, llama.model, table.model):
        steps.watch(model)
    mug = Keyword("mug") & ~Regex(",")
    letter = Keyword("b", whole_words=False)

    def chat(rule: Any, **options: Any) -> GuardedGenerator:
        return GuardedGenerator(chat_model, rule, tokenizer=chat_tokens, **options)

    def tale(rule: Any, **options: Any) -> GuardedGenerator:
        return GuardedGenerator(story_model, rule, tokenizer=story_tokens, **options)

    def tiny(rule: Any, world: Any = llama, **options: Any) -> GuardedGenerator:
        return GuardedGenerator(world.model, rule, tokenizer=world.tokenizer, **options)

    def rows(guarded: GuardedGenerator, prompts: list[str], **options: Any) -> Any:
        inputs = guarded.tokenizer(prompts, return_tensors="pt", padding=len(prompts) > 1)
        inputs.pop("token_type_ids", None)
        return guarded.generate(**inputs, do_sample=True, **options).tolist()

    def attempts(guarded: GuardedGenerator, *args: Any, **options: Any) -> Any:
        found = guarded.attempts(*args, **options)
        return [[[list(a.draw.token_ids), a.satisfied, repr(a.log_weight)] for a in each] for each in found]

    def planned(guarded: GuardedGenerator, *args: Any, **options: Any) -> Any:
        plan = guarded.plan(*args, **options)
        return [plan.sampler, str(plan).splitlines()[1].split(" s")[0]]

    several = ["ab", "a", "cde f. ab", "ab"]
    short: dict[str, Any] = {"max_new_tokens": 24, "num_return_sequences": 4}
    hint = Prompt("{prompt} Do not use commas.")
    few: dict[str, Any] = {"max_new_tokens": 6, "num_return_sequences": 5}
    dragon = Adapter("catalogue:dragon", allow_mismatch=True)
    return {
        "chat": lambda: chat(mug, seed=1)(CHAT, max_new_tokens=24, num_return_sequences=2),
        "chat, run": lambda: outcomes(chat(mug, seed=2).run(CHAT, **short)),
        "chat, batch of 8": lambda: outcomes(chat(mug, seed=2, batch_size=8).run(CHAT, **short)),
        "chat, batch of 1": lambda: outcomes(chat(mug, seed=3, batch_size=1).run(CHAT, max_new_tokens=12)),
        "chat, greedy": lambda: outcomes(chat(Length(min=1)).run(CHAT, do_sample=False, max_new_tokens=12, seed=0)),
        "chat, beams": lambda: outcomes(
            chat(Length(min=1)).run(CHAT, do_sample=False, num_beams=3, max_new_tokens=12, seed=0)
        ),
        "chat, bfloat16": lambda: outcomes(
            GuardedGenerator(half, ~Regex(","), tokenizer=chat_tokens, seed=4).run(CHAT, **short)
        ),
        "chat, qrs from a prompt": lambda: outcomes(
            chat(~Regex(","), seed=5).run(CHAT, proposal=hint, sampler=qrs(target_tvd=0.2, pilot=10), top_k=0, **short)
        ),
        "chat, imh from a prompt": lambda: outcomes(
            chat(~Regex(","), seed=6).run(CHAT, proposal=hint, sampler=imh(steps=5), top_k=0, **short)
        ),
        "chat, rejection from a prompt": lambda: outcomes(chat(mug, proposal=hint, seed=7).run(CHAT, **short)),
        "chat, JSON adapter": lambda: outcomes(
            chat("catalogue:json-object", adapter="catalogue:json-object", seed=8).run(
                [{"role": "user", "content": "Give me a name and an age as JSON."}], do_sample=True, **OPEN, **short
            )
        ),
        "chat, budget of attempts": lambda: outcomes(
            chat(mug, budget=Budget(max_attempts=9), seed=9).run(CHAT, **short)
        ),
        "chat, budget of tokens": lambda: outcomes(
            chat(mug, budget=Budget(max_tokens=150), seed=10).run(CHAT, **short)
        ),
        "chat, stop string": lambda: outcomes(chat(Finished(), seed=11).run(CHAT, stop_strings=["mug"], **short)),
        "chat, penalties": lambda: outcomes(
            chat(~Regex(","), seed=12).run(CHAT, repetition_penalty=1.2, no_repeat_ngram_size=3, top_p=0.9, **short)
        ),
        "chat, fallback": lambda: chat(
            Length(max=5), on_exhausted=Fallback("No."), budget=Budget(max_attempts=3), seed=13
        )(CHAT, max_new_tokens=8, num_return_sequences=2),
        "chat, none": lambda: chat(Length(max=1), on_exhausted="none", budget=Budget(max_attempts=3), seed=14)(
            CHAT, max_new_tokens=8
        ),
        "chat, several prompts": lambda: outcomes(
            chat(mug | Keyword("tea"), seed=15).run([CHAT, "A cup of", [*CHAT], "Tea is"], max_new_tokens=16)
        ),
        "chat, generate": lambda: rows(chat(~Regex(","), seed=16), ["Tea is", "A cup of"], max_new_tokens=12),
        "chat, second call": lambda: [
            guarded("Tea is", max_new_tokens=8) for guarded in [chat(~Regex(","), seed=17)] * 2
        ],
        "chat, catalogue": lambda: outcomes(chat("catalogue:single-sentence", seed=18).run(CHAT, **short)),
        "chat, JSON": lambda: outcomes(
            chat(JSONSchema({}), budget=Budget(max_attempts=60), seed=19).run("Here is a number:", **short)
        ),
        "story": lambda: outcomes(tale(Keyword("happy"), seed=20).run(STORY, **OPEN, **short)),
        "story, adapter": lambda: outcomes(
            tale(Keyword("dragon"), seed=21, adapter=dragon).run("<s>", **OPEN, **short)
        ),
        "story, adapter, imh": lambda: outcomes(
            tale(Keyword("dragon"), seed=22, sampler=imh(steps=4), adapter=dragon).run("<s>", **OPEN, **short)
        ),
        "story, attempts": lambda: attempts(tale(Keyword("happy")), STORY, 24, seed=23, max_new_tokens=16, **OPEN),
        "story, proposal model": lambda: outcomes(
            tale(Keyword("happy"), proposal=other_model, seed=24, sampler="qrs", budget=Budget(max_attempts=60)).run(
                STORY, **OPEN, **short
            )
        ),
        "story, sentences": lambda: outcomes(
            tale(~Keyword("she", on="first_sentence"), seed=25).run(STORY, **OPEN, **short)
        ),
        "story, generate": lambda: rows(
            tale(~Regex("little"), seed=26), [STORY], max_new_tokens=12, num_return_sequences=3
        ),
        "tiny": lambda: outcomes(tiny(letter, seed=27).run(several, **few)),
        "tiny, batch of 3": lambda: outcomes(tiny(letter, seed=27, batch_size=3).run(several, **few)),
        "tiny, batch of 1": lambda: outcomes(tiny(letter, seed=27, batch_size=1).run(several, **few)),
        "tiny, stream": lambda: outcomes(tiny(letter, seed=28).stream((p for p in several * 5), first=7, **few)),
        "tiny, lazily": lambda: list(tiny(letter, seed=29)((p for p in several), **few)),
        "tiny, token ids": lambda: tiny(letter, seed=30)(several, return_tensors=True, **few),
        "tiny, new text": lambda: tiny(letter, seed=31)(several, return_full_text=False, **few),
        "tiny, hidden budget": lambda: outcomes(
            tiny(Regex("^ab"), seed=32, budget=Budget(max_attempts=7)).run(several, **few)
        ),
        "tiny, many": lambda: outcomes(tiny(letter, seed=33, batch_size=16).run(several * 30, max_new_tokens=6)),
        "table": lambda: outcomes(
            tiny(Keyword("a", whole_words=False, min_count=1, max_count=2), table, seed=34).run(
                ["a", "ab"], num_return_sequences=50, **table.settings
            )
        ),
        "table, qrs": lambda: outcomes(
            tiny(Regex("^b"), table, seed=35, sampler="qrs", proposal=Prompt("b{prompt}")).run(
                "a", num_return_sequences=20, **table.settings
            )
        ),
        "table, plan": lambda: planned(
            tiny(Regex("^b"), table), "a", pilot=40, seed=36, num_return_sequences=5, **table.settings
        ),
        "table, unsatisfied": lambda: outcomes(
            tiny(Length(min=99), table, seed=37, budget=Budget(max_attempts=40)).run("a", **table.settings)
        ),
    }


class Steps:
    """Counts rows × passes of models, those of their copies too."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, model: Any) -> Any:
        model.register_forward_pre_hook(self, with_kwargs=True)
        return model

    def __call__(self, model: Any, args: Any, kwargs: Any) -> None:
        self.count += len(kwargs.get("input_ids", args[0] if args else ()))

    def __deepcopy__(self, memo: Any) -> "Steps":
        return self


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hub id or path of a story model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compare", type=Path, help="what an earlier run wrote")
    parser.add_argument("--only", default="", help="part of a case's name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    steps = Steps()
    found: dict[str, Any] = {}
    for name, call in cases(options.model, steps).items():
        if options.only not in name:
            continue
        steps.count = 0
        said = call()
        found[name] = {"row_steps": steps.count, "said": said}
        print(f"{steps.count:8} row-steps  {name}", flush=True)
    options.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if options.compare is None:
        return 0
    found, before = json.loads(options.out.read_text()), json.loads(options.compare.read_text())
    differing = [name for name in before if options.only in name and before[name] != found.get(name)]
    for name in differing:
        parts = [part for part in ("row_steps", "said") if before[name][part] != found.get(name, {}).get(part)]
        print(f"differs in {' and '.join(parts)}: {name}")
    print(f"{len(found) - len(differing)} of {len(found)} calls are as before")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
