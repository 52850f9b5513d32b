"""Words and sentences in many languages and scripts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Count, Length, Regex
from guardwrap.constraints import sentences as module
from guardwrap.constraints.sentences import count_spaced_words, sentences, settled_words, words_of
from guardwrap.constraints.views import settled_parts, view
from guardwrap.outcomes import Draw
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import profile, texts

PIECES = st.lists(
    st.sampled_from(
        ["a", "é", "e\u0301", "1", "_", "-", "'", "’", " ", "\n", ".", "机", "か", "カー", "사과", "ไทย", "ـ", "ال"]
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's a well-known fact.", ["It's", "a", "well-known", "fact"]),
        ("Straße – naïve e\u0301t", ["Straße", "naïve", "e\u0301t"]),
        ("这是机密。", list("这是机密")),
        ("コーヒーを飲む", ["コーヒー", "を", "飲", "む"]),
        ("AI模型", ["AI", "模", "型"]),
        ("나는 사과를 먹었다.", ["나는", "사과를", "먹었다"]),
        ("ไทย ดี", ["ไทย", "ดี"]),
        ("नमस्ते दुनिया।", ["नमस्ते", "दुनिया"]),
        ("كتاب، قلم؟", ["كتاب", "قلم"]),
        ("a_b 12 - --", ["a_b", "12"]),
    ],
)
def test_words_of(text: str, words: list[str]) -> None:
    assert words_of(text) == words
    assert Count("words", min=0).measure(text) == len(words)


def test_lengths_in_words() -> None:
    lengths = {"It's well-known - yes.": 4, "这是机密。": 4, "AI模型 ok": 4, "コーヒーを飲む": 4, "机密 — 。": 4, "": 0}
    assert {text: count_spaced_words(text) for text in lengths} == lengths
    assert not Length(max=4, unit="words").accepts("这份文件是机密的")


@given(text=st.text(alphabet="abé1.-'!? \n", max_size=20))
def test_texts_in_spaced_scripts_have_the_length_that_they_had(text: str) -> None:
    assert count_spaced_words(text) == len(text.split())


@given(text=PIECES, rest=PIECES)
@settings(max_examples=400, deadline=None)
def test_what_a_prefix_says_stays_true(text: str, rest: str) -> None:
    assert count_spaced_words(text) <= count_spaced_words(text + rest)
    fixed = settled_words(text)
    assert words_of(text + rest)[: len(fixed)] == fixed
    assert len(words_of(text)) - len(fixed) <= 1


@pytest.mark.parametrize("rule", [Length(max=3, unit="words"), Length(min=2, unit="words"), Regex("^a", on="words")])
@given(text=PIECES)
@settings(max_examples=100, deadline=None)
def test_laws(rule: Length | Regex, text: str) -> None:
    check_constraint(rule, [text])


def test_long_texts_take_linear_time() -> None:
    for text in ("a-" * 50_000, "机" * 100_000, "'" * 100_000, "a机" * 50_000, "e" + "\u0301" * 100_000):
        words_of(text), settled_words(text), count_spaced_words(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Hello there. How are you?", ["Hello there.", "How are you?"]),
        ("Dr. Who met J. Smith at 3.14 e.g. here. Yes!", ["Dr. Who met J. Smith at 3.14 e.g. here.", "Yes!"]),
        ('"Run!" she said. (Or so.) Well…', ['"Run!" she said.', "(Or so.)", "Well…"]),
        ("one\n\ntwo \n three", ["one", "two", "three"]),
        ("Mr.\nSmith", ["Mr.", "Smith"]),
        ("1. Tea. 2. Coffee.", ["1. Tea.", "2. Coffee."]),
        ("In order:\n10. Tea\n11. Milk", ["In order:", "10. Tea", "11. Milk"]),
        ("It was 12. We left in 1999. Then", ["It was 12.", "We left in 1999.", "Then"]),
        ("A. B. C.", ["A. B. C."]),
        ("a.b", ["a.b"]),
        ("他走了。“好的。”她说。真的吗？！是", ["他走了。", "“好的。”", "她说。", "真的吗？！", "是"]),
        ("「はい。」と言った。終わり", ["「はい。」と言った。", "終わり"]),
        ("他走了。 真的！", ["他走了。", "真的！"]),
        ("वह आया। वह गया॥अंत", ["वह आया।", "वह गया॥", "अंत"]),
        ("هل جئت؟ نعم. اذهب", ["هل جئت؟", "نعم.", "اذهب"]),
        ("यह २.५ है।", ["यह २.५ है।"]),
        ("„Ja.“ Er ging. »Nein.« Sie blieb.", ["„Ja.“", "Er ging.", "»Nein.«", "Sie blieb."]),
        ("« Oui. » Il part. « Non ! » Fin.", ["« Oui. »", "Il part.", "« Non ! »", "Fin."]),
        ("«\u00a0Oui.\u00a0» Il part.", ["«\u00a0Oui.\u00a0»", "Il part."]),
        ("Er ging. »Ja«, sagte er.", ["Er ging.", "»Ja«, sagte er."]),
        ("Obst, z. B. Äpfel, d. h. rote. Ja.", ["Obst, z. B. Äpfel, d. h. rote.", "Ja."]),
        ("Am 3. März und am 12. Mai. Ja.", ["Am 3. März und am 12. Mai.", "Ja."]),
        ("Er hat 3. Morgen kommt er.", ["Er hat 3.", "Morgen kommt er."]),
        ("Den 3. maj. Tak.", ["Den 3. maj.", "Tak."]),
        ("At 5 p.m. on Friday. At 5 p.m. They left.", ["At 5 p.m. on Friday.", "At 5 p.m.", "They left."]),
        ("Par ex., p. ex. ici. Voilà.", ["Par ex., p. ex. ici.", "Voilà."]),
        ("I tried… and failed. Well… Nothing.", ["I tried… and failed.", "Well…", "Nothing."]),
        ("Tea, milk etc. are here. Tea etc. Then I left.", ["Tea, milk etc. are here.", "Tea etc.", "Then I left."]),
        ("Room No. 5. No. I am ok. Ok.", ["Room No. 5.", "No.", "I am ok.", "Ok."]),
        ("“Stop!” — he said. “Stop!” — “Why?”", ["“Stop!” — he said.", "“Stop!”", "— “Why?”"]),
        ("「はい！」「いいえ！」", ["「はい！」", "「いいえ！」"]),
        ("“走！”他说。“走。”他说。", ["“走！”他说。", "“走。”", "他说。"]),
        ("Es war 1999. 5 kamen. Am 3. 5. 2024 kam er.", ["Es war 1999.", "5 kamen.", "Am 3. 5. 2024 kam er."]),
        ("Τι; Να; a; b", ["Τι;", "Να;", "a; b"]),
        (
            "Ludwig XIV. kam. II. Akt. World War II. Then.",
            ["Ludwig XIV. kam.", "II. Akt.", "World War II.", "Then."],
        ),
        ("А. С. Пушкин, т. е. поэт. Да.", ["А. С. Пушкин, т. е. поэт.", "Да."]),
        (
            "**Why?** _Dr._ Ada, **etc.** and so on. 1. **Tea.** Hot.",
            ["**Why?**", "_Dr._ Ada, **etc.** and so on.", "1. **Tea.**", "Hot."],
        ),
        ("**なぜ？** 次。**はい！**", ["**なぜ？**", "次。", "**はい！**"]),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


SENTENCE_PIECES = st.sampled_from(
    [
        *".!?…。！？।؟\"'”“»«」*_ \u00a0\n",
        "z.",
        "B.",
        "p.m.",
        "u.",
        "etc.",
        "2024. ",
        "— ",
        "XI.",
        "α;",
        "と",
        "a.",
        "3.",
        " 12. ",
        "Mä",
        "März",
        "M",
        "Mo",
        "a",
        "是",
    ]
)
SENTENCE_TEXTS = st.lists(SENTENCE_PIECES, max_size=9).map("".join)


@profile(600)
@given(SENTENCE_TEXTS, SENTENCE_TEXTS)
def test_sentences_of_all_languages_are_settled(prefix, rest):
    before, after = sentences(prefix), sentences(prefix + rest)
    assert after[: max(len(before) - 1, 0)] == before[:-1]
    assert len(after) >= len(before)
    fixed = settled_parts(prefix, "sentences")
    assert after[: len(fixed)] == fixed


def test_negative_control_a_month_that_has_begun_is_no_sentence(monkeypatch):
    """Without the beginnings of nouns, "3." is a settled sentence until the month is complete."""
    assert settled_parts("Am 3. Mä", "sentences") == []
    monkeypatch.setattr(module, "_follows", lambda pattern, text, place: bool(pattern.match(text, place)))
    assert settled_parts("Am 3. Mä", "sentences") == ["Am 3."]
    assert sentences("Am 3. März") == ["Am 3. März"]


@profile(500)
@given(texts, texts, st.sampled_from(["first_sentence", "last_sentence", "sentences", "lines", "completion", "full"]))
def test_settled_parts_stay(prefix, rest, on):
    parts = view(Draw("", (), prefix + rest), on)
    assert parts is not None
    fixed = settled_parts(prefix, on)
    assert parts[: len(fixed)] == fixed


@pytest.mark.slow
@pytest.mark.parametrize("run", [" ", ".", '"', '."', "\t", "\r", "\n", "。", "」", "。」", "3. M", "« ", "*", "!*"])
def test_long_runs_take_linear_time(run):
    sentences(run * 200_000)
