"""The ready-made constraint files: each agrees with its examples, aborts early where it can, and is sound."""

import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from guardwrap.constraints import All, Classifier, Constraint, Finished, Not, Regex, Verdict, catalogue, dump, parse
from guardwrap.constraints.base import walk
from guardwrap.constraints.checking import judge
from guardwrap.constraints.files.constraint_data import catalogue_names
from guardwrap.constraints.files.constraint_file import ConstraintFile, as_constraint_file
from guardwrap.errors import CheckFailed, UnknownName
from guardwrap.outcomes import Draw
from guardwrap.support.files import content

NAMES = catalogue_names()
# The examples of this file need a model; all other files are judged by rules.
RULES = [name for name in NAMES if name != "positive-ending"]
# In these files, every violation is certain as soon as its characters are written.
BANS = [
    "no-contact-details",
    "no-markdown",
    "no-payment-cards",
    "no-profanity",
    "no-profanity-de",
    "no-profanity-ru",
    "no-repetition",
    "no-urls",
    "printable-text",
]
MORE = " and so on. More text follows"
CONTINUATIONS = ["", "1", "a", "A", ".", " ", "\n", "-", "_", "@x.org", "(", '"', "}", " 123", ".5", "…", MORE]


@cache
def load(name: str) -> ConstraintFile:
    return catalogue(name)


def attempt(text: str, finished: bool = True) -> Draw:
    return Draw(prompt="", token_ids=(), text=text, finished=finished)


def misjudged(file: ConstraintFile) -> list[str]:
    wrong = [text for text in file.accepts if not file.constraint.accepts(text)]
    return wrong + [text for text in file.rejects if file.constraint.accepts(text)]


def unsound(constraint: Constraint, text: str) -> list[str]:
    """Return continuations that contradict a verdict on a prefix of the text."""
    wrong, seen = [], set()
    for end in range(len(text) + 1):
        verdict = constraint.verdict(text[:end])
        if verdict is Verdict.UNDECIDED:
            continue
        if constraint.accepts(text) is not (verdict is Verdict.SATISFIED):
            wrong.append(text[:end])
        if verdict not in seen:
            seen.add(verdict)
            texts = [text[:end] + more for more in CONTINUATIONS]
            wrong += [t for t in texts if constraint.accepts(t) is not (verdict is Verdict.SATISFIED)]
    return wrong


def test_there_are_at_least_sixty_files_and_the_readme_lists_them():
    assert len(NAMES) >= 60
    readme = (content("constraints") / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip().strip("`") for line in readme.splitlines() if line.startswith("| `")]
    assert sorted(rows) == NAMES


def test_a_name_finds_the_file_and_a_wrong_one_is_told_the_nearest():
    assert as_constraint_file("catalogue:no-urls") == load("no-urls")
    with pytest.raises(UnknownName, match="no-urls"):
        catalogue("no-url")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_complete_and_survives_dump_and_parse(name):
    file = load(name)
    assert file.name == name
    assert file.description
    assert len(file.description) > 200
    assert "Not caught" in file.description
    assert len(set(file.accepts)) >= 6
    assert len(set(file.rejects)) >= 6
    assert len(set(file.accepts) | set(file.rejects)) == len(file.accepts) + len(file.rejects)
    again = parse(dump(file))
    assert again.constraint.digest == file.constraint.digest
    assert again == file
    text = Path(content("constraints") / f"{name}.yaml").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 400
    assert "kind: python" not in text


@pytest.mark.parametrize("name", RULES)
def test_every_example_is_judged_right_and_soundly(name):
    file = load(name)
    assert misjudged(file) == []
    negated = replace(file, constraint=~file.constraint)
    assert misjudged(negated) == [*file.accepts, *file.rejects], "the check of examples can fail"
    assert all(getattr(part, "name", None) for part in file.constraint.parts)
    blamed = {judgement.blame for judgement in judge(file.constraint, [attempt(text) for text in file.rejects])}
    # A plain text counts as finished, so no example can be rejected by that part.
    assert blamed == {part.title for part in file.constraint.parts if not isinstance(part, Finished)}
    for text in (*file.accepts, *file.rejects):
        assert unsound(file.constraint, text) == []


def test_the_check_of_soundness_can_fail():
    class Hasty(Not):
        def verdict(self, prefix):
            return Verdict.VIOLATED if "4111" in prefix else Verdict.UNDECIDED

    cards = load("no-payment-cards").constraint
    assert unsound(cards, "Order 4111 1111 1111 1112 fails.") == []
    assert unsound(Hasty(~cards), "Order 4111 1111 1111 1112 fails.") != []


@pytest.mark.parametrize("name", BANS)
def test_a_ban_aborts_early(name):
    file = load(name)
    for text in file.rejects:
        assert file.constraint.verdict(text + MORE) is Verdict.VIOLATED, text
    # The added text must not be the reason.
    for text in file.accepts:
        assert file.constraint.accepts(text + MORE), text
        assert file.constraint.verdict(text + MORE) is not Verdict.VIOLATED, text


def test_the_check_of_early_abort_can_fail():
    assert Not(Regex(r"\b4111\b")).verdict("4111" + MORE) is Verdict.VIOLATED
    assert Not(Regex(r"4111.*\Z")).verdict("4111" + MORE) is Verdict.UNDECIDED


def test_no_refusal_aborts_early_unless_the_text_is_only_empty():
    file = load("no-refusal")
    for text in file.rejects:
        early = file.constraint.verdict(text + MORE) is Verdict.VIOLATED
        assert early is bool(text.strip()), text
    for text in file.accepts:
        assert file.constraint.accepts(text + MORE), text


def test_single_sentence_aborts_at_the_second_sentence():
    constraint = load("single-sentence").constraint
    assert constraint.verdict("One. ") is Verdict.UNDECIDED
    assert constraint.verdict("One. T") is Verdict.VIOLATED


def test_json_object_aborts_where_no_object_can_go_on():
    constraint = load("json-object").constraint
    for text in ("S", "[", '"', "```", "{'", '{"a": 1,}', '{"a": N', '{"a": 1} i', '{"a": 01'):
        assert constraint.verdict(text) is Verdict.VIOLATED, text
        assert constraint.verdict(text[:-1]) is Verdict.UNDECIDED or text == "```", text


def test_lexical_amazing_is_decided_as_soon_as_the_string_is_there():
    constraint = load("lexical-amazing").constraint
    assert constraint.verdict("It is amazin") is Verdict.UNDECIDED
    assert constraint.verdict("It is amazing") is Verdict.SATISFIED


@pytest.mark.parametrize("name", ["single-sentence", "no-refusal"])
def test_an_attempt_that_was_cut_off_is_rejected(name):
    file = load(name)
    for text in file.accepts:
        assert file.constraint.check([attempt(text), attempt(text, finished=False)]) == [True, False]


@pytest.mark.parametrize("start", ["4", "2221", "2720", "6759"])
def test_cards_have_13_to_19_digits_and_a_check_digit(start):
    constraint = load("no-payment-cards").constraint
    for body in ((start + "01928374655647382910")[:length] for length in range(10, 21)):
        # ISO/IEC 7812-1: from the right, every second digit is doubled, beginning after the check digit.
        total = sum(sum(divmod(int(d) * (2 - i % 2), 10)) for i, d in enumerate(reversed(body)))
        for digit in range(10):
            card = f"{body}{digit}"
            valid = (total + digit) % 10 == 0 and 13 <= len(card) <= 19
            assert constraint.accepts(f"Card {card}.") is not valid, card
            # Four groups within a longer, invalid number may be a card number.
            grouped = "-".join(card[i : i + 4] for i in range(0, len(card), 4))
            assert not (valid and constraint.accepts(f"Card {grouped}.")), grouped


def test_numbers_that_begin_like_no_card_are_left_alone():
    constraint = load("no-payment-cards").constraint
    for start in ("0", "1", "7", "8", "9", "2019", "2220", "2721"):
        assert all(constraint.accepts(f"{start}{n:0{16 - len(start)}d}") for n in range(100)), start


UNITS = [
    *("1", "a", "a.", "@", "a@", "1 ", "a ", "a-", " ", "\n", "0", "(0", "+1 ", ".", "/", "é", "1111 ", "4111"),
    *("[", "*", "*a", "`", "`a", "_", "__a ", "| ", "{", '{"a":', '"', "sorry ", "sorry but ", "I can't ", "as an AI "),
    *("follow ", "tel 1", "www.", "http://", "a.com@", "fu", "the cat and a dog ", "x y z w v u t s r ", "amazin"),
]
ADVERSARIAL = [
    *(unit * (5000 // len(unit)) for unit in UNITS),
    "f" + "u" * 5000,
    " ".join(f"w{i}" for i in range(1000)),
    ("a" * 41 + " ") * 3 + "b " * 2000,
]


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_adversarial_texts_take_no_time(name):
    constraint = load(name).constraint
    for text in ADVERSARIAL:
        begin = time.process_time()
        try:
            constraint.accepts(text)
        except CheckFailed as error:
            pytest.fail(f"{error} on {text[:10]!r}...")
        constraint.verdict(text)
        assert time.process_time() - begin < 0.5, text[:10]


def test_the_check_of_time_can_fail():
    with pytest.raises(CheckFailed):
        Not(Regex(r"(a+)+@", timeout=0.05)).accepts("a" * 5000)


# The classifier of positive-ending


class StandIn:
    """A stand-in for a text-classification pipeline that returns scores from a table and records its inputs."""

    def __init__(self, joy, labels=("anger", "joy", "neutral")):
        self.joy, self.asked = joy, []
        config = SimpleNamespace(id2label=dict(enumerate(labels)), max_position_embeddings=514)
        self.model = SimpleNamespace(config=config)
        self.tokenizer = Tokenizer()

    def __call__(self, texts, top_k=1, truncation=False, max_length=None, batch_size=1, split_special_tokens=False):
        assert top_k is None
        self.asked += texts
        # The label that counts comes last, and is never the most probable one of several.
        return [
            [{"label": "anger", "score": 1.0}, {"label": "neutral", "score": 0.99}, {"label": "joy", "score": p}]
            for p in (self.joy[text] for text in texts)
        ]


class Tokenizer:
    model_max_length = 512

    def __call__(self, texts, **options):
        return {"input_ids": [text.split() for text in texts]}


def positive_ending(pipeline: StandIn) -> Classifier:
    # Load a new file, because the stand-in would stay in the cache of the shared one.
    constraint = catalogue("positive-ending").constraint
    assert isinstance(constraint, Classifier)
    constraint.__dict__["pipeline"] = pipeline
    return constraint


def test_positive_ending_is_the_papers():
    constraint = load("positive-ending").constraint
    assert isinstance(constraint, Classifier)
    assert constraint.model == "j-hartmann/emotion-english-distilroberta-base"
    assert (constraint.label, constraint.threshold, constraint.side) == ("joy", 0.98, "above")


def test_positive_ending_judges_the_last_sentence_only():
    pipeline = StandIn({"He smiled.": 0.99, "He cried!": 0.01})
    constraint = positive_ending(pipeline)
    texts = ["He cried! He smiled.", "He smiled. He cried!", "Mr. X ran. It rained.\nHe smiled. "]
    assert constraint.check([Draw("A bad day. ", (), text) for text in texts]) == [True, False, True]
    assert {text.strip() for text in pipeline.asked} == {"He smiled.", "He cried!"}


def test_positive_ending_wants_more_than_the_threshold():
    joy = {"a": 0.98, "b": 0.980001, "c": 0.979999, "d": 1.0, "e": 0.0}
    constraint = positive_ending(StandIn(joy))
    assert [constraint.accepts(text) for text in joy] == [False, True, False, True, False]


def test_positive_ending_promises_nothing_about_prefixes():
    pipeline = StandIn({})
    constraint = positive_ending(pipeline)
    for text in (*load("positive-ending").accepts, *load("positive-ending").rejects):
        assert all(constraint.verdict(text[:end]) is Verdict.UNDECIDED for end in range(len(text) + 1))
    assert pipeline.asked == []


def test_positive_ending_examples():
    hub = pytest.importorskip("huggingface_hub")
    file = catalogue("positive-ending")
    assert isinstance(file.constraint, Classifier)
    try:
        folder = hub.snapshot_download(file.constraint.model, local_files_only=True)
    except hub.errors.LocalEntryNotFoundError:
        pytest.skip(f"{file.constraint.model} is not in the local Hugging Face cache, and tests download nothing")
    from transformers import pipeline

    file.constraint.__dict__["pipeline"] = pipeline("text-classification", model=folder)
    assert misjudged(file) == []


def test_files_combine():
    both = as_constraint_file(["catalogue:no-urls", "catalogue:no-contact-details", "catalogue:no-payment-cards"])
    assert isinstance(both.constraint, All)
    assert len(list(walk(both.constraint))) > 10
    assert both.constraint.accepts("A plain sentence.")
    for name in ("no-urls", "no-contact-details", "no-payment-cards"):
        assert not any(both.constraint.accepts(text) for text in load(name).rejects)
