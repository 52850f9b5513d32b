"""Repair turns: the law of their texts, what the model is shown, and what reports say."""

import asyncio
import json
import random
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from guardwrap import Budget, Fallback, GuardedGenerator, JSONSchema, Length, Regex, Repair, constraint, qrs
from guardwrap.calls import job
from guardwrap.calls.sessions import EndpointSession
from guardwrap.constraints.checking import run_check
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.engine.scheduling.request import RejectedAttempt
from guardwrap.errors import BudgetExhausted, CheckFailed, Deterministic, UsageError
from guardwrap.outcomes import Draw, Outcome
from guardwrap.testing import goodness_of_fit, table_world
from tests.engine.endpoint.fixtures_server import Server, endpoint, of_world

WORLD = table_world(letters="ab", max_new_tokens=3)
RULE = Regex("^b")
ONE, FEW = Budget(max_attempts=1), Budget(max_attempts=2)
DRAWS = 6_000
FITS, FAILS = 1e-3, 1e-9
CHAT = [{"role": "user", "content": "A short poem, please."}]
PEOPLE = JSONSchema({"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}, name="person")


def another_prompt(prompt: str, rejected: RejectedAttempt) -> str:
    """Continue with another prompt, which depends on the rejected text."""
    assert not rejected.draw.text.startswith("b")
    return "b" if rejected.draw.text.startswith("a") else "a"


def drawn(draws: int = DRAWS) -> list[Outcome]:
    repair = Repair(message=another_prompt, otherwise="none")
    guarded = GuardedGenerator(WORLD.pipeline(), RULE, budget=ONE, on_exhausted=repair, batch_size=64, seed=1)
    return guarded.run([WORLD.prompt] * draws, progress=False, **WORLD.settings)


def law() -> dict[Any, float]:
    """Return the probability of each text, and of none after one attempt and one repair turn of one attempt."""
    probabilities: dict[Any, float] = {}

    def add(prompt: str, share: float, turns: int) -> None:
        world = replace(WORLD, prompt=prompt)
        for ids, chance in world.law().items():
            draw = world.draw(ids)
            if run_check(RULE, [draw])[0]:
                probabilities[ids] = probabilities.get(ids, 0.0) + share * chance
            elif turns:
                add("b" if draw.text.startswith("a") else "a", share * chance, turns - 1)
            else:
                probabilities[None] = probabilities.get(None, 0.0) + share * chance

    add(WORLD.prompt, 1.0, 1)
    return probabilities


def fit(outcomes: list[Outcome]) -> float:
    return goodness_of_fit([each.draws[0].token_ids if each.ok else None for each in outcomes], law())


@pytest.mark.slow
def test_texts_follow_the_model_given_the_repaired_prompt() -> None:
    outcomes = drawn()
    assert fit(outcomes) > FITS
    repaired = [each for each in outcomes if each.ok and "repair turn" in each.report.drawn_from]
    assert DRAWS / 10 < len(repaired) < DRAWS / 2


@pytest.mark.slow
def test_negative_control_the_random_numbers_of_the_rejected_attempt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "seed_for", lambda seed, purpose: seed)
    assert fit(drawn(2_000)) < FAILS


@pytest.mark.parametrize("way", ["run", "stream", "arun"])
def test_every_way_to_call_repairs_alike(way: str) -> None:
    repair = Repair(max_turns=3, message=another_prompt)
    guarded = GuardedGenerator(WORLD.pipeline(), RULE, budget=FEW, on_exhausted=repair)
    prompts, options = [WORLD.prompt] * 20, {**WORLD.settings, "seed": 5, "num_return_sequences": 2}
    expected = guarded.run(prompts, batch_size=1, **options)
    ways = {
        "run": lambda: guarded.run(prompts, **options),
        "stream": lambda: list(guarded.stream(iter(prompts), **options)),
        "arun": lambda: asyncio.run(guarded.arun(prompts, **options)),
    }
    outcomes = ways[way]()
    assert [each.texts for each in outcomes] == [each.texts for each in expected]
    assert all(text.startswith("b") for each in outcomes for text in each.texts)
    assert {len(each.texts) for each in outcomes} >= {1, 2}
    assert all(each.prompt == WORLD.prompt for each in outcomes)


def test_records_show_the_callers_prompt_and_no_rejected_text() -> None:
    repair = Repair(max_turns=9, message=another_prompt)
    guarded = GuardedGenerator(WORLD.pipeline(), RULE, budget=ONE, on_exhausted=repair, seed=1)
    records = guarded([WORLD.prompt] * 20, **WORLD.settings)
    assert all(record["generated_text"].startswith(f"{WORLD.prompt}b") for (record,) in records)


def test_pieces_of_a_stream_have_the_index_of_their_text() -> None:
    pieces: dict[int, str] = {}

    def on_piece(prompt: int, number: int, piece: str) -> None:
        pieces[number] = pieces.get(number, "") + piece

    repair = Repair(max_turns=4, message=another_prompt)
    guarded = GuardedGenerator(WORLD.pipeline(), RULE, budget=FEW, on_exhausted=repair)
    options = {**WORLD.settings, "num_return_sequences": 4, "seed": 8}
    (outcome,) = guarded.stream([WORLD.prompt], on_piece=on_piece, **options)
    assert outcome.texts == tuple(pieces[number] for number in range(4))
    assert any("repair turn" in note for note in outcome.report.notes)


def test_reports_add_the_turns_up_and_say_so() -> None:
    repair = Repair(max_turns=4, message=another_prompt)
    guarded = GuardedGenerator(WORLD.pipeline(), RULE, budget=FEW, on_exhausted=repair)
    (outcome,) = guarded.run(WORLD.prompt, num_return_sequences=4, seed=8, **WORLD.settings)
    report = outcome.report
    assert (report.requested, report.accepted, report.seed, report.ended) == (4, 4, 8, "complete")
    assert 4 < report.usage.attempts <= 10, "several turns"
    assert sum(report.rejections.values()) == report.usage.attempts - 4
    turns = [note for note in report.notes if note.endswith("so a repair turn followed")]
    assert len(turns) == -(-report.usage.attempts // 2) - 1
    assert report.drawn_from.startswith("not your model's own distribution: ")
    assert "given a rejected text and the reasons (g' of another prompt)" in report.drawn_from
    assert report.acceptance is None
    assert "do not follow your model's own distribution" in report.headline()


def test_without_a_rejected_attempt_nothing_changes() -> None:
    plain = GuardedGenerator(WORLD.pipeline(), RULE, budget=Budget(), seed=1)
    repairing = GuardedGenerator(WORLD.pipeline(), RULE, on_exhausted=Repair(message=another_prompt), seed=1)
    (one,), (other,) = (each.run(WORLD.prompt, **WORLD.settings) for each in (plain, repairing))
    assert one.texts == other.texts
    assert one.report.drawn_from == other.report.drawn_from
    assert one.report.notes == other.report.notes


@pytest.mark.parametrize("sampler", ["rejection", qrs(pilot=5)])
def test_further_turns_have_the_calls_sampler_and_then_what_is_otherwise(sampler: Any) -> None:
    asked: list[str] = []

    def message(prompt: str, rejected: RejectedAttempt) -> str:
        asked.append(prompt)
        return f"{prompt}b"

    never = Regex("x")
    repair = Repair(max_turns=2, message=message, otherwise=Fallback("x"))
    guarded = GuardedGenerator(WORLD.pipeline(), never, budget=Budget(20), on_exhausted=repair, sampler=sampler)
    outcome = guarded.run(WORLD.prompt, **WORLD.settings)[0]
    if outcome.report.ended != "impossible":
        assert asked == [WORLD.prompt, f"{WORLD.prompt}b"]
        assert outcome.report.usage.attempts == 60
    assert outcome.texts == ("x",)
    with pytest.raises(BudgetExhausted):
        guarded(WORLD.prompt, on_exhausted=Repair(message=message), **WORLD.settings)
    with pytest.raises(UsageError, match="the fallback violates the constraint"):
        guarded(WORLD.prompt, on_exhausted=Repair(message=message, otherwise=Fallback("y")), **WORLD.settings)


def test_a_greedy_answer_is_repaired() -> None:
    settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": 3}
    plain = GuardedGenerator(WORLD.pipeline(), ~RULE)
    prompt = next(each for each in ("a", "b", "aa", "ab", "bb", "ba") if _greedy(plain, each, settings))
    others = [each for each in ("a", "b", "aa", "ab", "bb", "ba") if not _greedy(plain, each, settings)]
    repair = Repair(message=lambda _, rejected: others[0])
    guarded = GuardedGenerator(WORLD.pipeline(), RULE, on_exhausted=repair)
    (outcome,) = guarded.run(prompt, **settings)
    assert outcome.ok
    with pytest.raises(Deterministic):
        guarded(prompt, on_exhausted=Repair(message=lambda given, _: given), **settings)


def _greedy(guarded: GuardedGenerator, prompt: str, settings: dict[str, Any]) -> bool:
    """Return whether the greedy text of a prompt violates RULE."""
    return guarded.run(prompt, **settings)[0].ok


def rejected(rule: Any, text: str, **fields: Any) -> RejectedAttempt:
    draw = Draw("", (), text, **fields)
    return RejectedAttempt(0, 0, draw, rule.title, None, True, rule)


def test_the_chat_goes_on_with_the_answer_and_the_reasons() -> None:
    answered = Repair().next_prompt(CHAT, rejected(PEOPLE, '{"age": "old"}'))
    assert answered[0] == CHAT[0]
    assert answered[1] == {"role": "assistant", "content": '{"age": "old"}'}
    assert answered[2]["role"] == "user"
    assert answered[2]["content"].startswith("Your answer was rejected for this reason: person, $.age: ")
    begun = [*CHAT, {"role": "assistant", "content": "Roses"}]
    own = Repair(message="No: {reasons}!").next_prompt(begun, rejected(RULE, " are red", begun="Roses"))
    assert [message["content"] for message in own[1:]] == ["Roses are red", "No: Regex(pattern='^b')!", "Roses"]
    thought = rejected(RULE, "<think>well</think>no", parts=(("reasoning", ("well",)), ("answer", ("no",))))
    assert Repair().next_prompt(CHAT, thought)[1]["content"] == "no"


def test_rules_with_code_of_the_user_are_not_asked_again() -> None:
    asked = []

    @constraint
    def polite(text: str) -> bool:
        asked.append(text)
        return False

    both = polite & Length(max=1)
    message = Repair(message="{reasons}").next_prompt(CHAT, rejected(both, "rude"))[-1]["content"]
    assert message == both.title
    assert not asked


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_turns": 0}, "max_turns=0: give a whole number of at least 1"),
        ({"message": "again"}, r"pass a text with \{reasons\}, or a function"),
        ({"otherwise": "rais"}, r"otherwise='rais' is not 'raise', 'none', Fallback\('a text or a function'\)"),
        ({"turns": 2}, "max_turns"),
    ],
)
def test_mistakes(options: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        Repair(**options)


def test_a_prompt_that_is_no_chat_is_an_error_before_anything_is_drawn() -> None:
    guarded = GuardedGenerator(WORLD.pipeline(), RULE, on_exhausted=Repair())
    with pytest.raises(UsageError, match=r"Repair\(\) continues a chat \(.*\), and this prompt is none"):
        guarded(WORLD.prompt, **WORLD.settings)


@pytest.mark.parametrize("length", [1000, 18])
def test_a_prompt_that_outgrows_the_context_ends_the_turns(length: int) -> None:
    """One that leaves no room for a token, or not enough for the longest text: some models fail there."""
    longest = 10 * WORLD.model.config.max_position_embeddings
    assert length > longest or length + 3 > WORLD.model.config.max_position_embeddings >= length
    repair = Repair(max_turns=3, message=lambda *_: "a" * length, otherwise="none")
    guarded = GuardedGenerator(WORLD.pipeline(), RULE & Regex("x"), budget=ONE, on_exhausted=repair)
    outcomes = guarded.run([WORLD.prompt] * 5, seed=1, **WORLD.settings)
    assert {each.report.usage.attempts for each in outcomes} == {1}
    fits = Repair(max_turns=3, message=lambda *_: "aa", otherwise="none")
    outcomes = guarded.run([WORLD.prompt] * 5, seed=1, on_exhausted=fits, **WORLD.settings)
    assert {each.report.usage.attempts for each in outcomes} == {4}


def test_the_turns_of_a_constraint_file() -> None:
    """A file's turns come before ``on_exhausted``, and ``Repair`` replaces them."""
    two, three = (
        ConstraintFile(RULE, repair={"max_turns": turns, "message": "{reasons}"}, budget=ONE) for turns in (2, 3)
    )
    turns: dict[str, tuple[GuardedGenerator, dict[str, Any], int]] = {
        "the wrapper's file": (GuardedGenerator(WORLD.pipeline(), two), {}, 2),
        "and a fallback": (GuardedGenerator(WORLD.pipeline(), two, on_exhausted=Fallback("b")), {}, 2),
        "the wrapper's Repair": (GuardedGenerator(WORLD.pipeline(), two, on_exhausted=Repair()), {}, 1),
        "the call's file": (GuardedGenerator(WORLD.pipeline(), two), {"constraints": three}, 3),
        "before the wrapper": (
            GuardedGenerator(WORLD.pipeline(), RULE, on_exhausted=Repair()),
            {"constraints": two},
            2,
        ),
        "the call's Repair": (
            GuardedGenerator(WORLD.pipeline(), two),
            {"constraints": three, "on_exhausted": Repair()},
            1,
        ),
    }
    for name, (guarded, options, expected) in turns.items():
        job = guarded.session.job({**WORLD.settings, **options, "seed": 0})
        assert job.repair is not None, name
        assert job.repair.max_turns == expected, name
    guarded = turns["and a fallback"][0]
    assert guarded.session.job({**WORLD.settings, "seed": 0}).on_exhausted == Fallback("b")
    kept = GuardedGenerator(WORLD.pipeline(), RULE, on_exhausted=Repair(otherwise="none"))
    assert kept.session.job({**WORLD.settings, "constraints": two, "seed": 0}).on_exhausted == "none"


def test_a_file_for_prompts_that_are_no_chats_is_an_error() -> None:
    file = ConstraintFile(RULE, repair={"max_turns": 1, "message": "{reasons}"})
    with pytest.raises(UsageError, match=r"Repair\(\) continues a chat \(.*\), and this prompt is none"):
        GuardedGenerator(WORLD.pipeline(), file)(WORLD.prompt, **WORLD.settings)
    with pytest.raises(UsageError, match="all prompts of a call share their repair turns"):
        GuardedGenerator(WORLD.pipeline(), RULE).run([WORLD.prompt], constraint_each=[file], **WORLD.settings)


def test_an_error_of_the_users_function_ends_its_call_alone() -> None:
    def fails(prompt: str, rejected: RejectedAttempt) -> str:
        raise ZeroDivisionError

    guarded = GuardedGenerator(WORLD.pipeline(), Regex("x") | RULE, budget=ONE)

    async def both() -> list[Any]:
        failing = guarded.arun([WORLD.prompt] * 30, on_exhausted=Repair(message=fails), seed=1, **WORLD.settings)
        fine = guarded.arun([WORLD.prompt] * 30, on_exhausted=Repair(message=another_prompt), seed=2, **WORLD.settings)
        return list(await asyncio.gather(failing, fine, return_exceptions=True))

    failed, others = asyncio.run(both())
    assert isinstance(failed, ZeroDivisionError | CheckFailed)
    alone = guarded.run([WORLD.prompt] * 30, on_exhausted=Repair(message=another_prompt), seed=2, **WORLD.settings)
    assert [each.texts for each in others] == [each.texts for each in alone]


def test_other_calls_continue_while_the_next_prompt_is_made() -> None:
    """Explaining a rejection and tokenizing a longer chat would hold up everyone in the batch."""
    waits, others_ended = threading.Event(), threading.Event()
    continued: list[bool] = []

    def slow(prompt: str, rejected: RejectedAttempt) -> str:
        waits.set()
        continued.append(others_ended.wait(10))
        return another_prompt(prompt, rejected)

    guarded = GuardedGenerator(WORLD.pipeline(), RULE, budget=ONE)

    async def both() -> list[Outcome]:
        repair = Repair(message=slow)
        repaired = asyncio.create_task(guarded.arun([WORLD.prompt] * 30, on_exhausted=repair, seed=2, **WORLD.settings))
        await asyncio.to_thread(waits.wait, 10)
        await guarded.arun([WORLD.prompt] * 30, seed=1, **WORLD.settings)
        others_ended.set()
        return await repaired

    outcomes = asyncio.run(both())
    assert continued
    assert all(continued), "the batch waited"
    alone = guarded.run([WORLD.prompt] * 30, on_exhausted=Repair(message=another_prompt), seed=2, **WORLD.settings)
    assert [each.texts for each in outcomes] == [each.texts for each in alone]


def test_a_next_prompt_that_is_never_made_ends_with_the_timeout() -> None:
    let_go = threading.Event()
    returned: list[bool] = []

    def never(prompt: str, rejected: RejectedAttempt) -> str:
        returned.append(let_go.wait(10))
        return prompt

    guarded = GuardedGenerator(WORLD.pipeline(), Regex("x") & RULE, budget=Budget(max_attempts=1, timeout=0.3))
    repair = Repair(message=never, otherwise=Fallback(lambda prompt: "bx"))
    try:
        (outcome,) = asyncio.run(guarded.arun(WORLD.prompt, on_exhausted=repair, **WORLD.settings))
        assert not returned
    finally:
        let_go.set()
    assert outcome.texts == ("bx",)


def test_attempts_for_estimates_are_not_repaired() -> None:
    guarded = GuardedGenerator(WORLD.pipeline(), RULE, on_exhausted=Repair(message=another_prompt))
    (attempts,) = guarded.attempts(WORLD.prompt, 30, seed=1, **WORLD.settings)
    assert len(attempts) == 30


@pytest.mark.parametrize("refused", [False, True])
def test_a_chat_that_outgrows_the_context_of_an_endpoint_ends_the_turns(refused: bool) -> None:
    """Which the server alone knows. Texts of other prompts come all the same."""
    world = table_world(3, letters="ab", max_new_tokens=5)
    server = Server(of_world(world))
    draw = server.text

    def cut(prompt: str, chance: random.Random) -> Any:
        return (["b"], "length", 1) if len(prompt) > 1 else draw(prompt, chance)

    def refuse(asked: Mapping[str, Any]) -> list[bytes] | None:
        body = json.dumps({"error": {"message": "too long", "param": "input_tokens"}}).encode()
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return [head.encode() + body] if len(asked["messages"]) > 1 else None

    if refused:
        server.raw = refuse
    else:
        server.text = cut
    repair = Repair(max_turns=3, message="{reasons}", otherwise="none")
    with server.running():
        guarded = GuardedGenerator(endpoint(server), Regex("^a", name="ab"), budget=ONE, on_exhausted=repair, seed=3)
        outcomes = guarded.run([[{"role": "user", "content": "a"}]] * 8, temperature=1.0, max_new_tokens=5)
        assert {each.report.usage.attempts for each in outcomes} == {1}
        assert {len(each.texts) for each in outcomes} == {0, 1}
        assert len(server.seen) > 8


def test_over_an_endpoint() -> None:
    world = table_world(3, letters="ab", max_new_tokens=5)
    rule = Regex("^a", name="ab")  # the model knows no other letters
    repair = Repair(max_turns=20, message="{reasons}")
    with Server(of_world(world)).running() as server:
        guarded = GuardedGenerator(endpoint(server), rule, budget=ONE, on_exhausted=repair, seed=3)
        assert isinstance(guarded.session, EndpointSession)
        outcomes = guarded.run([[{"role": "user", "content": "a"}]] * 5, temperature=1.0, max_new_tokens=5)
        assert all(each.texts[0].startswith("a") for each in outcomes)
        sent = [request["messages"] for request in server.seen if "messages" in request]
    longer = [messages for messages in sent if len(messages) > 1]
    assert longer
    assert [message["role"] for message in longer[0]] == ["user", "assistant", "user"]
    assert longer[0][1]["content"][:1] != "a"
    assert longer[0][2]["content"] == "ab"
