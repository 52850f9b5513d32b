"""Keyword in twelve languages: what counts as an occurrence, and sound verdicts whatever character follows."""

from __future__ import annotations

import unicodedata
from itertools import product
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Keyword, Verdict
from guardwrap.constraints.kinds import keyword as module
from guardwrap.constraints.kinds import text_folding
from guardwrap.constraints.kinds.keyword import unlikely_words
from guardwrap.constraints.kinds.text_folding import TextFolding
from guardwrap.errors import ConstraintError, Unsatisfiable
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import profile

V, U, S = Verdict.VIOLATED, Verdict.UNDECIDED, Verdict.SATISFIED

NFD: Literal["NFD"] = "NFD"

BANS = [
    # language, word, text, whether the text contains the word, fields
    ("de", "Straße", "DIE STRASSE IST LANG", True, {}),
    ("de", "STRASSE", "Die Straße ist lang.", True, {}),
    ("de", "Übung", unicodedata.normalize(NFD, "Eine Übung."), True, {}),
    ("de", "Steuer", "Die Steuererklärung ist fertig.", False, {}),
    ("de", "Steuer", "Die Steuererklärung ist fertig.", True, {"whole_words": False}),
    ("de", "geheim", "Das ist ge\u00adheim.", True, {}),
    ("de", "schon", "Das ist schön.", False, {}),
    ("fr", unicodedata.normalize(NFD, "café"), "Un café noir", True, {}),
    ("fr", "ou", "Où est-il ?", False, {}),
    ("fr", "aujourd'hui", "Il pleut aujourd’hui.", True, {}),
    ("fr", "eau", "Il boit de l’eau.", True, {}),
    ("fr", "Acme France", "chez Acme\u00a0France", True, {}),
    ("es", "año", unicodedata.normalize(NFD, "El AÑO pasado"), True, {}),
    ("es", "ano", "El año pasado", False, {}),
    ("es", "correo-e", "Mi correo e es nuevo.", True, {"spacing": "optional"}),
    ("pt", "ação", "UMA AÇÃO.", True, {}),
    ("pt", "segredo", "um seg\u200bredo", True, {}),
    ("pl", "złoty", "ZŁOTY wiek", True, {}),
    ("pl", "kąt", "To jest kat.", False, {}),
    ("tr", "İstanbul", "istanbul'da", True, {}),
    ("tr", "ısı", "ISI ARTTI", True, {}),
    ("tr", "istanbul", "İSTANBUL güzel", True, {}),
    ("tr", "sınır", "Çok sinirli bir sinir", False, {}),
    ("ru", "Йод", unicodedata.normalize(NFD, "ЙОД в аптеке"), True, {}),
    ("ru", "код", "кодекс", False, {}),
    ("el", "ΟΔΟΣ", "μια οδός, η οδος", True, {}),
    ("ar", "سر", "هذا سر كبير", True, {}),
    ("ar", "سر", "هذا سرير", False, {}),
    ("ar", "سر", "كشف السر.", True, {}),
    ("ar", "سر", "وبالسر", True, {}),
    ("ar", "سر", "هذا سِرٌّ كبير", True, {}),
    ("ar", "سر", "هذا ســر كبير", True, {}),
    ("hi", "हिन्दी", "मैं हिन्दी बोलता हूँ।", True, {}),
    ("hi", "हिन्द", "मैं हिन्दी बोलता हूँ।", False, {}),
    ("zh", "机密", "这份文件是机密的。", True, {}),
    ("zh", "AI", "这是AI模型。", True, {}),
    ("zh", "AI模型", "这个ＡＩ模型很大。", True, {"normalize": "NFKC"}),
    ("ja", "秘密", "それは秘密です。", True, {}),
    ("ja", "は", "ばかりです", False, {}),
    ("ja", "ガム", "ｶﾞﾑを食べる", True, {"normalize": "NFKC"}),
    ("th", "ความลับ", "นี่คือความลับของเรา", True, {}),
    ("th", "กา", "ขาวและก่า", False, {}),
    ("ko", "사과", "나는 사과를 먹었다.", True, {}),
    ("ko", "사과", "사과에서는 향이 난다.", True, {}),
    ("ko", "사과", "그는 사관이다.", False, {}),
    ("ko", "AI", "AI는 빠르다.", True, {}),
    ("ko", unicodedata.normalize(NFD, "비밀"), "이것은 비밀입니다.", True, {}),
    ("km", "សម្ងាត់", "នេះជាឯកសារសម្ងាត់ណាស់", True, {}),
    ("my", "လျှို့ဝှက်", "ဒါဟာလျှို့ဝှက်စာပါ", True, {}),
    ("en", "e-mail", "Send an email or an e\u2011mail.", True, {"spacing": "optional"}),
    ("en", "don't", "I don’t know.", True, {}),
    ("en", "fish", "the ﬁsh", True, {}),
    ("en", "🙂", "hello🙂", True, {}),
    ("en", "secret", "ｓｅｃｒｅｔ", True, {}),
    ("en", "secret", "𝐬𝐞𝐜𝐫𝐞𝐭 ⓢⓔⓒⓡⓔⓣ", True, {}),
    ("en", "secret", "🅢🅔🅒🅡🅔🅣", True, {}),
    ("en", "secret", "⒮⒠⒞⒭⒠⒯", True, {}),
    ("en", "secret", "s\u0336e\u0336c\u0336r\u0336et", True, {}),
    ("en", "secret", "s\x00e\x08cret", True, {}),
    ("en", "secret", "s\u200be\u2060c\ufeffr\u202ee\ufe0ft", True, {}),
    ("en", "secret", "ｓｅｃｒｅｔ", False, {"normalize": "NFC"}),
    ("en", "secret", "sécret", False, {}),
    ("en", "Acme", "Acme™ and Acme²", True, {}),
    ("en", "№", "no", False, {}),
    ("en", "no", "№ 5", True, {}),
    ("en", "²", "2", False, {}),
    ("en", "—", "well-known", False, {}),
    ("en", "≠", "a = b", False, {}),
    ("en", "911", "call ９११", True, {}),
    ("en", "911", "call ➒①1", True, {}),
    ("fa", "کتاب", "كتاب", True, {}),
    ("ar", "كتاب", "کتاب", True, {}),
    ("ar", "علي", "علی", True, {}),
    ("ar", "علي", "على", False, {}),
    ("ar", "كتاب", "ﻛﺘﺎﺏ", True, {}),
    ("de", "Häuser", "ｈäｕｓｅｒ", True, {"stem": "german"}),
]


@pytest.mark.parametrize(("language", "word", "text", "occurs", "fields"), BANS)
def test_bans_in_many_languages(language: str, word: str, text: str, occurs: bool, fields: dict[str, Any]) -> None:
    assert Keyword(word, match="none", **fields).accepts(text) is not occurs
    assert Keyword(word, **fields).accepts(text) is occurs
    check_constraint(Keyword(word, match="none", **fields), [text, text + "\u0301", f"{text} {word}"])


# ------------------------------------------------------------------------------- the definition, character by character

INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff\u034f\ufe0f\u115f\u1160"
ALIKE = {"i": "iI", "I": "iIı", "ı": "Iı"}
UNSPACED = ("CJK UNIFIED", "HIRAGANA", "KATAKANA", "THAI", "COMBINING KATAKANA")
PARTICLES = ("은", "는", "가", "를", "과")  # those of the letters in ``NASTY``
ARTICLES = ("", "ال", "وال", "بال", "وبال", "لل", "ولل")


def plain(text: str, constraint: Keyword, form: Literal["NFD", "NFKD"]) -> str:
    """Fold a text, one rule after the other."""
    if constraint.ignore_invisible:
        text = "".join(char for char in text if char not in INVISIBLE)
    text = "".join(char for char in text if char not in "\u0640\u064e\u0651")
    kept = "ﬁ" if any("ﬁ" in word for word in constraint.words) else ""  # the only sign in WORDS
    text = "".join(char if char in kept else unicodedata.normalize(form, char) for char in text)
    text = unicodedata.normalize("NFD", text)
    syllables, jamo = "", ""
    for char in text + " ":
        if "\u1100" <= char <= "\u11ff":
            jamo += char
        else:
            syllables, jamo = syllables + unicodedata.normalize("NFC", jamo) + char, ""
    text = syllables[:-1].replace("\u2019", "'").replace("\u2011", "-")
    if constraint.case_sensitive:
        return text
    text = text.replace("I\u0307", "i").replace("i\u0307", "i")
    return "".join(char if char in "Iı" else char.casefold() for char in text)


def kind(char: str) -> str:
    name = unicodedata.name(char, "")
    if name.startswith(UNSPACED):
        return "unspaced"
    if name.startswith("HANGUL"):
        return "hangul"
    word = char in "_\u200c\u200d" or unicodedata.category(char)[0] in "LMN"
    return "" if not word else "arabic" if name.startswith("ARABIC") else "spaced"


def right_edge(text: str, end: int, of: str) -> bool:
    follows = text[end : end + 1]
    if follows and unicodedata.category(follows)[0] == "M":
        return False
    if of == "hangul":
        run = text[end:]
        while (run and kind(run[-1]) != "hangul") or any(kind(char) != "hangul" for char in run):
            run = run[:-1]
        return any(run == "".join(some) for size in range(4) for some in product(PARTICLES, repeat=size))
    return of not in ("spaced", "arabic") or not follows or kind(follows) not in ("spaced", "arabic")


def left_edge(text: str, start: int, of: str) -> bool:
    free = not start or kind(text[start - 1]) not in ("spaced", "arabic")
    if of == "hangul":
        return not start or kind(text[start - 1]) != "hangul"
    if of == "arabic" and not free:
        return any(
            article and text[:start].endswith(article) and left_edge(text, start - len(article), "spaced")
            for article in ARTICLES
        )
    return free or of not in ("spaced", "arabic")


def end_of(text: str, start: int, word: str, constraint: Keyword) -> int | None:
    """Return where an occurrence that begins here ends. White space at the word's own ends matches one character."""
    optional = constraint.spacing == "optional"
    gaps = [char.isspace() or (optional and char == "-") for char in word]
    first = gaps.index(False) if False in gaps else len(word)
    last = len(word) - gaps[::-1].index(False) if False in gaps else 0
    place, index = start, 0
    while index < len(word):
        letter = text[place : place + 1]
        if constraint.spacing != "exact" and gaps[index] and first < index < last:
            begun = place
            while gaps[index]:
                index += 1
            while place < len(text) and (text[place].isspace() or (optional and text[place] == "-")):
                place += 1
            if place == begun and not optional:
                return None
            continue
        alike = word[index] if constraint.case_sensitive else ALIKE.get(word[index], word[index])
        space = constraint.spacing != "exact" and word[index].isspace() and letter.isspace()
        if not letter or not (space or letter in alike):
            return None
        place, index = place + 1, index + 1
    return place


def occurrences(text: str, constraint: Keyword, words: list[str]) -> int:
    """Return the count in the form that has more of them, if compatible spellings are the same."""
    if constraint.normalize == "NFC":
        return in_form(text, constraint, words, "NFD")
    return max(in_form(text, constraint, words, "NFD"), in_form(text, constraint, words, "NFKD"))


def in_form(text: str, constraint: Keyword, words: list[str], form: Literal["NFD", "NFKD"]) -> int:
    """Count from left to right; where two words begin, the longest one that is an occurrence counts."""
    folded, count, place = plain(text, constraint, form), 0, 0
    longest = sorted(dict.fromkeys(plain(word, constraint, form) for word in words), key=len, reverse=True)
    while place < len(folded):
        for word in longest:
            end = end_of(folded, place, word, constraint)
            whole = constraint.whole_words
            if end is not None and (
                not whole or (left_edge(folded, place, kind(word[0])) and right_edge(folded, end, kind(word[-1])))
            ):
                count, place = count + 1, end
                break
        else:
            place += 1
    return count


def defined(text: str, constraint: Keyword) -> bool:
    """Whether a text satisfies a constraint, by the definition."""
    groups = [[word] for word in constraint.words] if constraint.match == "all" else [list(constraint.words)]
    counts = [occurrences(text, constraint, group) for group in groups]
    if constraint.match == "none":
        return not any(counts)
    most = constraint.max_count
    return all(constraint.least <= count and (most is None or count <= most) for count in counts)


NASTY = [
    *"aisSIßﬁKÅ -._'1",
    *"\u0301\u0323\u0307\u0345İıςσΣ",
    *INVISIBLE[:8],
    *"\u00a0\n\u2019\u2011",
    *"模型はガか\u3099กา่",
    *"사과를는은가\u1100\u1161\u11a8각",
    *"سرالوب\u0640\u0651",
    *"हिन्द",
]
WORDS = [
    *(
        "a",
        "as",
        "ass",
        "is",
        "I",
        "ı",
        "İs",
        "ß",
        "SS",
        "ﬁ",
        "fi",
        "é",
        "e\u0301",
        "a\u0323",
        "\u1fb3",
        "Σς",
        "1",
        "_a",
    ),
    *("a i", "s-i", "i's", "-s", "a-", "a. ", " a"),
    *("模型", "AI模型", "は", "ガ", "か", "กา", "사", "사과", "가", "سر", "हिन"),
]


@st.composite
def keywords_and_texts(draw: st.DrawFn) -> tuple[Keyword, str]:
    match: Any = draw(st.sampled_from(["any", "all", "none"]))
    counts: dict[str, Any] = {} if match == "none" else {"min_count": draw(st.sampled_from([None, 0, 1, 2]))}
    if match != "none":
        counts["max_count"] = draw(st.sampled_from([None, None, 2, 3]))
    yes = st.booleans()
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
    constraint = Keyword(
        words,
        match=match,
        case_sensitive=draw(yes),
        whole_words=draw(yes),
        spacing=draw(st.sampled_from(["flexible", "exact", "optional"])),
        normalize=draw(st.sampled_from(["NFC", "NFKC"])),
        ignore_invisible=draw(yes),
        **counts,
    )
    piece = st.sampled_from(NASTY) | st.sampled_from(words)
    return constraint, "".join(draw(st.lists(piece, max_size=8)))


@pytest.mark.slow
@profile(600)
@given(keywords_and_texts())
def test_occurrences_are_those_of_the_definition(pair: tuple[Keyword, str]) -> None:
    constraint, text = pair
    assert constraint.accepts(text) is defined(text, constraint)


@pytest.mark.slow
@profile(400)
@given(keywords_and_texts())
def test_verdicts_are_sound_and_do_not_depend_on_pieces(pair: tuple[Keyword, str]) -> None:
    constraint, text = pair
    check_constraint(constraint, [text])


EXACT = [
    (Keyword("is", match="none"), "i\u00ads."),
    (Keyword("is", match="none", whole_words=False), "Is"),
    (Keyword("ıs", match="none", whole_words=False), "Is"),
    (Keyword("é", match="none", whole_words=False), "e\u0301."),
    (Keyword("é", max_count=1), "é é "),
    (Keyword("SS", min_count=2, whole_words=False), "ßß"),
    (Keyword("a i", match="none"), "a \n i."),
    (Keyword("a-i", match="none", spacing="optional"), "a i "),
    (Keyword("か", match="none"), "かは"),
    (Keyword("AI模型", match="none"), "AI模型 "),
    (Keyword("사과", match="none"), "사과를는 "),
    (Keyword("가", match="none", whole_words=False), "가를"),
    (Keyword("سر", match="none"), "السـر "),
    (Keyword(["σς", "a"], match="all"), "a Σσ "),
    (Keyword("ガ", match="none", normalize="NFKC"), "ｶﾞは"),
    (Keyword("-s", match="none"), "a-s "),
]


@pytest.mark.slow
@pytest.mark.parametrize(("constraint", "text"), EXACT, ids=repr)
def test_a_verdict_holds_for_every_continuation(constraint: Keyword, text: str) -> None:
    """All continuations of up to two nasty characters are judged by the definition, not by the code under test."""
    continuations = ["", *NASTY, *map("".join, product(NASTY, repeat=2))]
    verdicts = [constraint.verdict(text[:end]) for end in range(len(text) + 1)]
    assert verdicts[-1] is not U
    for end, verdict in enumerate(verdicts):
        if verdict is not U:
            assert {defined(text[:end] + rest, constraint) for rest in continuations} == {verdict is S}


def hasty(breakage: str, monkeypatch: pytest.MonkeyPatch) -> Keyword:
    """Break one of the rules that keep verdicts sound, and return a constraint that relies on it."""
    if breakage == "marks":
        monkeypatch.setattr(TextFolding, "settled", TextFolding.fold)
        return Keyword("é", match="none", whole_words=False)
    if breakage == "syllables":
        monkeypatch.setattr(TextFolding, "settled", TextFolding.fold)
        return Keyword("가", match="none", whole_words=False)
    if breakage == "capital i":
        monkeypatch.setattr(TextFolding, "settled", TextFolding.fold)
        return Keyword("sı", match="none", whole_words=False)
    if breakage == "particles":
        monkeypatch.setattr(module, "without_last_hangul", lambda text: text)
        return Keyword("사과", match="none")
    if breakage == "edges":
        monkeypatch.setattr(Keyword, "settled_end", lambda self, folded: len(folded))
        return Keyword("か", match="none")
    monkeypatch.setattr(text_folding, "last_piece", len)
    return Keyword("é", match="none", whole_words=False)


@pytest.mark.parametrize(
    ("breakage", "text"),
    [
        ("marks", "e\u0301\u0323"),
        ("syllables", "가\u11a8"),
        ("capital i", "SI\u0307"),
        ("particles", "사과를사"),
        ("edges", "か\u3099"),
        ("pieces", "e\u0301\u0323"),
    ],
)
def test_negative_control_each_rule_of_soundness_is_needed(
    breakage: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(AssertionError):
        check_constraint(hasty(breakage, patch), [text])


def test_negative_control_the_definition_sees_another_folding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextFolding, "_with_case", lambda self, text: text.lower())
    assert not Keyword("STRASSE").accepts("Straße")
    assert defined("Straße", Keyword("STRASSE"))


# --------------------------------------------------------------------------------------------------------------- other


def test_a_word_that_cannot_be_seen_needs_the_option() -> None:
    with pytest.raises(ConstraintError, match="no character that can be seen; set ignore_invisible=False") as caught:
        Keyword("\u200b", match="none")
    assert "\n" not in str(caught.value)
    assert not Keyword("\u200b", match="none", ignore_invisible=False, whole_words=False).accepts("a\u200bb")


def test_a_changed_meaning_is_a_changed_digest() -> None:
    """Adapters for plain English words keep their card; phrases and other scripts mean more than they did."""
    assert Keyword("dragon").digest_fields() == Keyword(["tea", "B2"]).digest_fields() == {}
    for word in ("機密", "Straße", "Acme Corp", "e-mail", "don't", "-ing"):
        assert Keyword(word).digest_fields() == {"matching": 4}
        assert Keyword(["dragon", word]).digest_fields() == {"matching": 4}


@pytest.mark.parametrize(
    ("word", "note"),
    [
        ("-ing", "'-ing' occurs only with its dash; for a part of words write 'ing' and whole_words: false"),
        ("pre-", "'pre-' occurs only with its dash; for a part of words write 'pre' and whole_words: false"),
        ("drag*", "'drag*' is searched for as written, as a keyword has no wildcards; use kind: regex"),
        ("tea ", "'tea ' occurs only with the white space around it; write 'tea' to find it anywhere"),
        ("\u0301", "'\u0301' begins with a mark, which belongs to the letter before it; set whole_words: false"),
        ("tea, coffee", "'tea, coffee' is one phrase; for several words write a list: [tea, coffee]"),
    ],
)
def test_words_that_hardly_ever_occur_get_a_note(word: str, note: str) -> None:
    assert unlikely_words(Keyword(word)) == [note]
    assert [each for each in unlikely_words(Keyword(["tea", word])) if each != note] == []


def test_usual_words_get_no_note() -> None:
    for word in (
        "e-mail",
        "c++",
        "#tag",
        "$5",
        "http://",
        "don't",
        "Acme Corp.",
        "f***",
        "機密",
        "हिन्दी",
        "사과",
        "🙂",
        "*",
    ):
        assert unlikely_words(Keyword(word)) == []


def test_words_with_punctuation_at_their_ends_are_found_next_to_letters() -> None:
    for word, text in (
        ("http://", "http://a.b"),
        ("@", "a@b"),
        ("%", "50%"),
        ("€", "€5"),
        ("c++", "C++11"),
        ("🙂", "a🙂b"),
    ):
        assert Keyword(word).accepts(text)
    assert not Keyword("@a").accepts("@ab")
    assert not Keyword("-ing").accepts("going")


def test_equal_spellings_contradict_each_other() -> None:
    for word in ("CAFE\u0301", "caf\u00ade\u0301"):
        with pytest.raises(Unsatisfiable, match="both required and banned"):
            Keyword("café") & Keyword(word, match="none")
    Keyword("café") & Keyword("CAFÉ", match="none", case_sensitive=True)


@pytest.mark.parametrize("word", ["zebra", "zebra tea"])
def test_long_texts_are_folded_and_searched_once(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor reads each character about once, so its cost per token does not grow with the text."""
    folded: list[int] = []
    searched: list[int] = []
    fold, find = TextFolding.fold, Keyword.find

    def counting_fold(self: TextFolding, text: str) -> str:
        folded.append(len(text))
        return fold(self, text)

    def counting_find(self, pattern, text, start=0):
        searched.append(len(text) - start)
        return find(self, pattern, text, start)

    monkeypatch.setattr(TextFolding, "fold", counting_fold)
    monkeypatch.setattr(Keyword, "find", counting_find)
    monitor = Keyword(word, match="none").monitor()
    folded.clear()
    for _ in range(2_000):
        monitor = monitor.read("né ")
    assert monitor.verdict is U
    assert sum(folded) <= 3 * 2_000
    assert max(searched) <= 6 * len(word)
    assert monitor.read(f"{word} ").verdict is V
