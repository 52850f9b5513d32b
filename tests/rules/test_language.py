"""The constraint ``Language``: thirteen languages, uncertain texts, mixed texts, limits and files."""

import contextlib
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Language, Verdict
from guardwrap.constraints import parse
from guardwrap.errors import CheckFailed, ConstraintError
from guardwrap.rules import language
from guardwrap.serve.request_models import GuardwrapFields
from guardwrap.serve.request_policy import RequestPolicy, constraints_of
from guardwrap.testing import check_constraint

installed = pytest.mark.skipif(find_spec("py3langid") is None, reason="needs py3langid")

TEXTS = {
    "de": "Der Zug nach Berlin fährt heute leider erst zwei Stunden später ab, weil es so stark geschneit hat.",
    "en": "Unfortunately the train to the capital leaves two hours later today, because it has snowed so much.",
    "fr": "Le train pour la capitale part malheureusement avec deux heures de retard, parce qu'il a beaucoup neigé.",
    "es": "El tren a la capital sale hoy por desgracia con dos horas de retraso, porque ha nevado muchísimo.",
    "pt": "O comboio para a capital parte hoje infelizmente com duas horas de atraso, porque nevou muito.",
    "pl": "Pociąg do stolicy odjeżdża dziś niestety z dwugodzinnym opóźnieniem, ponieważ spadło dużo śniegu.",
    "tr": "Başkente giden tren bugün ne yazık ki iki saat geç kalkıyor, çünkü çok kar yağdı.",
    "ru": "Поезд в столицу отправляется сегодня, к сожалению, на два часа позже, потому что выпало много снега.",
    "ar": "القطار المتجه إلى العاصمة يغادر اليوم للأسف متأخرا ساعتين بسبب تساقط الثلوج بكثافة.",
    "hi": "राजधानी जाने वाली ट्रेन आज दुर्भाग्य से दो घंटे देर से चलेगी क्योंकि बहुत बर्फ गिरी है।",
    "zh": "很遗憾，由于下了大雪，今天开往首都的火车要晚两个小时才能出发，请大家在车站耐心等待。",
    "ja": "残念ながら、大雪のため、首都行きの列車は今日は二時間遅れて出発します。",
    "th": "น่าเสียดายที่รถไฟไปเมืองหลวงวันนี้ออกช้าสองชั่วโมงเพราะหิมะตกหนักมาก",
    "ko": "안타깝게도 눈이 많이 와서 수도로 가는 기차가 오늘은 두 시간 늦게 출발합니다.",
}
MIXED = f"{TEXTS['de']} Er sagte nur: ja. {TEXTS['de']} {TEXTS['en']}"


@installed
@pytest.mark.parametrize("code", TEXTS)
def test_a_text_is_in_its_own_language_only(code):
    assert [other for other, text in TEXTS.items() if Language(code).accepts(text)] == [code]


@installed
def test_one_of_several_languages():
    rule = Language(["fr", "de"])
    assert [code for code, text in TEXTS.items() if rule.accepts(text)] == ["de", "fr"]
    assert rule == Language(["de", "fr", "de"])
    assert Language("de") == Language(["de"])


@installed
@pytest.mark.parametrize("text", ["OK", "42", "", "😀 !", "Berlin", "Hotel Taxi", "это", "真的"])
def test_uncertain_texts_pass_unless_they_are_to_fail(text):
    assert Language("de").accepts(text)
    assert not Language("de", uncertain="fail").accepts(text)


OWN_SCRIPT = ["ar", "hi", "ja", "ko", "ru", "th", "zh"]


@installed
@pytest.mark.parametrize("code", OWN_SCRIPT)
def test_a_short_text_without_a_letter_of_the_script_is_in_another_language(code):
    rule = Language(code)
    assert [text for text in ("Tea is good.", "Ça va bien ?", "Все мы тут.") if rule.accepts(text)] == (
        ["Все мы тут."] if code == "ru" else []
    )
    for name in ("OK", "Hotel Taxi", "iPhone 15", "5 km, 3 kg, 2 ml", "x = a + b", "42", TEXTS[code][:4]):
        assert rule.accepts(name), name
        assert rule.accepts(f"{name} {TEXTS[code]}")
    assert not Language(code, share=0.2).accepts("Tea is good.")
    mixed = Language(code, share=0.9)
    assert mixed.accepts(TEXTS[code] * 5)
    assert not mixed.accepts(f"{TEXTS[code]} Tea is good. I like it. So do you. And so do we.")


@installed
def test_a_language_that_may_be_in_latin_letters_leaves_short_texts_uncertain():
    for languages in ("de", "sr", ["de", "zh"], ["en", "ru"]):
        assert Language(languages).accepts("Tea is good.")
    assert not Language(["ru", "zh"]).accepts("Tea is good.")
    assert Language(["ru", "zh"]).accepts("Все мы тут.")


@installed
@pytest.mark.parametrize("code", OWN_SCRIPT)
def test_no_beginning_in_another_script_decides(code):
    check_constraint(Language(code), [f"Tea is good. {TEXTS[code]}", "Tea is good."])
    check_constraint(Language(code, on="sentences"), [f"Tea is good. {TEXTS[code]}", "Tea is good."])


@installed
def test_sentences_in_another_language_count_by_their_letters():
    accepted = [share for share in (0.5, 0.6, 0.9, 1.0) if Language("de", share=share).accepts(MIXED)]
    assert accepted == [0.5, 0.6]
    assert not Language("de", on="sentences").accepts(MIXED)
    assert Language("de", on="sentences").verdict(f"{TEXTS['en']} Und") is Verdict.VIOLATED
    assert Language("de", share=0.5).accepts("OK. Taxi.")
    assert not Language("de", share=0.5, uncertain="fail").accepts("OK. Taxi.")


@installed
@settings(max_examples=20)
@given(pieces=st.lists(st.sampled_from([*TEXTS.values(), " OK. ", "\n", "\ud800"]), max_size=3))
def test_no_prefix_decides(pieces):
    for rule in (Language("de"), Language(["en", "ja"], on="sentences"), Language("de", share=0.7)):
        check_constraint(rule, ["".join(pieces)[:120]])


@installed
def test_long_texts_are_judged_in_pieces():
    german = TEXTS["de"] * 400
    assert Language("de").accepts(german)
    assert not Language("de").accepts(german + TEXTS["en"] * 300)


@installed
@pytest.mark.parametrize(
    "text", ["a" * 3 * 10**4, "語" * 3 * 10**4, "a. " * 3 * 10**4, "\ud800" * 3 * 10**4, "\x00" * 3 * 10**4]
)
def test_hostile_texts_end(text):
    for rule in (Language("de"), Language("de", share=0.5)):
        with contextlib.suppress(CheckFailed):
            assert rule.accepts(text) in (True, False)


@installed
@pytest.mark.parametrize(
    ("languages", "options", "message"),
    [
        ("german", {}, "is not one of"),
        ([], {}, "languages must be"),
        (None, {}, "languages must be"),
        ("de", {"share": 0}, "share"),
        ("de", {"share": 1.5}, "share"),
        ("de", {"uncertain": "maybe"}, "uncertain"),
    ],
)
def test_invalid_parameters(languages, options, message):
    with pytest.raises(ConstraintError, match=message):
        Language(languages, **options)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(language, "find_spec", lambda name: None)
    with pytest.raises(ConstraintError, match=r"py3langid: pip install 'guardwrap\[language\]'$"):
        Language("de")


@installed
def test_files_and_requests_may_use_it():
    rule = parse("guardwrap: 1\nconstraint: {kind: language, languages: de}\n").constraint
    assert rule == Language("de")
    assert parse("guardwrap: 1\nconstraint: {kind: language, languages: [de, en], share: 1}\n").constraint.accepts(
        MIXED
    )
    fields = {"constraint": {"kind": "language", "languages": "de"}}
    (file,) = constraints_of(GuardwrapFields.model_validate(fields), RequestPolicy(models=("m",)))
    assert file.constraint.digest == rule.digest


@installed
def test_the_order_of_texts_makes_no_difference():
    rule = Language("de")
    first = [rule.accepts(text) for text in TEXTS.values()]
    assert [rule.accepts(text) for text in reversed(TEXTS.values())] == first[::-1]
