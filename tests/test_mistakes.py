"""Mistakes of the first hour: each raises a one-line message with the cause and the way out."""

import dataclasses
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest
from huggingface_hub import constants

from guardwrap import (
    Adapter,
    Budget,
    Fallback,
    GuardedGenerator,
    JSONSchema,
    Keyword,
    Length,
    Masked,
    Prompt,
    Regex,
    constraint,
    imh,
    qrs,
)
from guardwrap.errors import GuardwrapError
from guardwrap.testing import World, llama_world

RULE: Any = Regex("a")


class Person(pydantic.BaseModel):
    name: str


def made(given: Any, **options: Any) -> Any:
    return GuardedGenerator(WORLD.pipeline(), given, **options)


def asked(prompt: Any = "a", rule: Any = RULE, **options: Any) -> Any:
    return made(rule)(prompt, **{"max_new_tokens": 2, **options})


WORLD: World = llama_world(max_new_tokens=2)
anything: Any = lambda text: "yes"  # noqa: E731
options: Any = {"batchsize": 3}
given: Callable[..., Any] = dict

# The mistake, the cause in the message, and the way out in the message.
MISTAKES: list[tuple[str, Callable[[], Any], str, str]] = [
    ("option of the wrapper", lambda: made(RULE, batchsize=3), "no option 'batchsize'", "did you mean 'batch_size'"),
    ("option of Regex", lambda: Regex(**given(patern="x")), "no option 'patern'", "did you mean 'pattern'"),
    ("option of Length", lambda: Length(**given(minimum=3)), "no option 'minimum'", "it has min, max"),
    ("option of Keyword", lambda: Keyword("a", **given(whole_word=True)), "'whole_word'", "did you mean 'whole_words'"),
    ("option of Budget", lambda: Budget(**given(max_attempt=3)), "'max_attempt'", "did you mean 'max_attempts'"),
    ("option of Fallback", lambda: Fallback(**given(txt="x")), "'txt'", "did you mean 'text'"),
    ("option of Prompt", lambda: Prompt(**given(templat="x")), "'templat'", "did you mean 'template'"),
    ("option of Masked", lambda: Masked(**given(unsen=1)), "'unsen'", "did you mean 'unseen'"),
    ("option of Adapter", lambda: Adapter(**given(sorce="x")), "'sorce'", "did you mean 'source'"),
    ("option of qrs", lambda: qrs(**given(target=0.1)), "'target'", "did you mean 'target_tvd'"),
    ("option of imh", lambda: imh(**given(step=1)), "'step'", "did you mean 'steps'"),
    ("a unit without its name", lambda: Length(*[20, "words"]), "no argument without a name, not 2", r"max=..., unit="),
    (
        "a match without its name",
        lambda: Regex(*["a", "full"]),
        "1 argument without a name, not 2",
        r"\(pattern, match=",
    ),
    ("a place too many", lambda: Prompt(*["{prompt}", "b"]), "1 argument without a name, not 2", r"Prompt\(template\)"),
    (
        "a sampler without its name",
        lambda: GuardedGenerator(*["x", RULE, "qrs"]),
        "2 arguments without a name",
        "sampler=",
    ),
    ("options of qrs", lambda: qrs(*[None, 0.1]), "1 argument without a name, not 2", r"qrs\(beta, target_tvd="),
    ("option of a call", lambda: asked(max_new_token=3), "'max_new_token'", "did you mean 'max_new_tokens'"),
    ("option of another API", lambda: made(RULE).run("a", n=3), "argument 'n'", "here it is 'num_return_sequences'"),
    (
        "option of the wrapper in a call",
        lambda: made(RULE).run("a", allow_code=True),
        "'allow_code'",
        "belongs to the wrapper",
    ),
    *(
        (
            f"limit of a budget in a call: {limit}",
            lambda limit=limit: made(RULE).run("a", **{limit: 3}),
            f"'{limit}'",
            rf"belongs to the budget, budget=Budget\({limit}=\.\.\.\)",
        )
        for limit in sorted({field.name for field in dataclasses.fields(Budget)} - {"max_tokens"})
    ),
    ("tokens of another API", lambda: made(RULE).run("a", max_tokens=3), "'max_tokens'", "here it is 'max_new_tokens'"),
    ("option of a stream", lambda: list(made(RULE).stream("a", bugdet=1)), "'bugdet'", "did you mean 'budget'"),
    ("name of a sampler", lambda: asked(sampler="rejecton"), "sampler 'rejecton'", "did you mean 'rejection'"),
    ("sampler without brackets", lambda: asked(sampler=qrs), "qrs returns a sampler", r"give qrs\(...\)"),
    ("a text as a constraint", lambda: made("tea"), "'tea' is not a file", r"write Keyword\('tea'\)"),
    ("a model as a constraint", lambda: made(Person), "Person is not a constraint", r"write JSONSchema\(Person\)"),
    ("a list of models", lambda: made([Person]), "class Person is not a constraint", r"write JSONSchema\(Person\)"),
    ("a schema as a constraint", lambda: made({"type": "object"}), "not a constraint", r"write JSONSchema\({...}\)"),
    (
        "a function as a constraint",
        lambda: made(lambda text: True),
        "not a constraint",
        r"write constraint\(function\)",
    ),
    ("a kind as a constraint", lambda: made(Regex), "Regex is not a constraint", r"a constraint with Regex\(...\)"),
    ("nothing as a constraint", lambda: made(None), "None is not a constraint", "pass a Constraint"),
    ("a text joined", lambda: RULE & "tea", "'tea' .str. is not one", r"write Keyword\('tea'\)"),
    ("and instead of &", lambda: RULE and Regex("b"), "no truth value", "combine with &"),
    ("no model", lambda: GuardedGenerator(None, RULE), "cannot wrap NoneType", "give a pipeline"),
    (
        "a prompt as a proposal",
        lambda: asked(proposal="No {prompt}"),
        "not the name of a model",
        r"Prompt\('No {prompt}'\)",
    ),
    ("a template without a place", lambda: Prompt("hm"), r"Prompt\('hm'\)", "needs {prompt}"),
    ("a name of the catalogue", lambda: made("catalogue:no-profanty"), "'no-profanty'", "did you mean 'no-profanity'"),
    ("a limit as a text", lambda: Length(min="3"), r"'3' \(str\)", "give a whole number"),  # type: ignore[arg-type]
    ("limits the wrong way round", lambda: Length(min=5, max=3), "min=5 exceeds max=3", "max=3"),
    ("a number as a word", lambda: Keyword(3), r"not 3 \(int\)", "a text or a list of texts"),  # type: ignore[arg-type]
    ("a number as a pattern", lambda: Regex(3), r"not 3 \(int\)", "must be a string"),  # type: ignore[arg-type]
    ("half a pattern", lambda: Regex("("), "invalid regular expression", "position 1: missing"),
    (
        "a pattern that is not raw",
        lambda: Regex("\bcat"),
        r"U\+0008, to which double quotes turn \\b",
        r"single quotes \(YAML\), r",
    ),
    ("a group that is not raw", lambda: Regex("(a)\1"), r"U\+0001, to which double quotes turn \\1", r"write \\x01"),
    ("a name of a choice", lambda: Regex("a", match="ful"), "match='ful'", "search, fullmatch"),  # type: ignore[arg-type]
    ("a text as a schema", lambda: JSONSchema("x"), r"not 'x' \(str\)", "a mapping, true or false, or a type"),
    ("a type of a schema", lambda: JSONSchema({"type": "strng"}), "invalid JSON Schema at type", "'strng'"),
    ("a number as a budget", lambda: made(RULE, budget=100), "budget=100", r"pass Budget\(max_attempts=100\)"),
    ("... of a call", lambda: asked(budget=100), "budget=100", r"pass Budget\(max_attempts=100\)"),
    ("a text in a budget", lambda: Budget(max_attempts="x"), "max_attempts='x'", "a whole number"),  # type: ignore[arg-type]
    ("a seed", lambda: made(RULE, seed="x"), "seed='x'", "a whole number"),
    ("what to do without a text", lambda: made(RULE, on_exhausted="rise"), "'rise'", "did you mean 'raise'"),
    ("a number as a prompt", lambda: asked(3), "prompts from int", "pass a string"),
    ("no prompt", lambda: asked(None), "no prompt", "pass a string"),
    ("an adapter's folder", lambda: made(RULE, adapter="no-folder"), "no folder 'no-folder'", "Hub id"),
    ("a checker's answer", lambda: asked(rule=constraint(anything)), "returned str", "instead of bool"),
    ("no texts", lambda: asked(num_return_sequences=0), "num_return_sequences=0", "at least 1"),
    ("a model that does not sample", lambda: asked(rule=Regex("zzz"), do_sample=False), "again", "do_sample=True"),
    (
        "a spent budget",
        lambda: asked(rule=Length(min=99), budget=Budget(max_attempts=3)),
        "is spent",
        "raise the budget",
    ),
    ("values of what is no JSON", lambda: made(Length(min=0)).run("a")[0].values, "JSONSchema", "parse the texts"),
]


@pytest.mark.parametrize(("mistake", "cause", "way_out"), [each[1:] for each in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_answered_in_one_line(mistake: Callable[[], Any], cause: str, way_out: str) -> None:
    with pytest.raises((GuardwrapError, TypeError)) as caught:
        mistake()
    message = str(caught.value)
    assert re.search(cause, message), message
    assert re.search(way_out, message), message
    assert "\n" not in message


def test_there_are_enough_and_none_twice() -> None:
    assert len({name for name, *_ in MISTAKES}) == len(MISTAKES) >= 40


def test_without_a_network_the_answer_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the libraries would retry for more than a minute."""
    tried: list[Any] = []

    def refused(address: Any, *_: Any) -> Any:
        tried.append(address)
        raise OSError("Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("guardwrap.support.network.getproxies", dict)
    monkeypatch.setattr(socket, "create_connection", refused)
    for name, hint in (("someone/some-model", ""), ("locl", r" \(did you mean 'local'\?\)")):
        with pytest.raises(GuardwrapError, match=f"'{name}'{hint}.*cannot be reached.*give the path of a folder"):
            GuardedGenerator(name, RULE)
    assert len(tried) == 2


def test_a_copy_in_the_cache_needs_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pipe = WORLD.pipeline()
    pipe.save_pretrained(tmp_path)
    monkeypatch.setattr("guardwrap.support.network.reachable", lambda: False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda source, local_files_only: str(tmp_path))
    guarded = GuardedGenerator("someone/cached", Length(min=0), seed=1)
    assert guarded.run("a", max_new_tokens=2)[0].texts
