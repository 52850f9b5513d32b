"""Sentences in many languages, and boundaries that no later text moves.

Covers ``constraints/sentence_ends.py``, ``constraints/abbreviations.py`` and ``constraints/views.py``.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap.constraints import sentence_ends
from guardwrap.constraints.sentence_ends import sentences
from guardwrap.constraints.views import settled_parts, view
from guardwrap.outcomes import Draw
from tests.constraints.fixtures_strategies import profile, texts


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
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


SENTENCE_PIECES = st.sampled_from(
    [
        *".!?…。！？।؟\"'”“»«」 \u00a0\n",
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
    monkeypatch.setattr(sentence_ends, "_follows", lambda pattern, text, place: bool(pattern.match(text, place)))
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
@pytest.mark.parametrize("run", [" ", ".", '"', '."', "\t", "\r", "\n", "。", "」", "。」", "3. M", "« "])
def test_long_runs_take_linear_time(run):
    sentences(run * 200_000)
