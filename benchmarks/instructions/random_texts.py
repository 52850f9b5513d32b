"""Random texts to compare rules and checkers on: parts put together, and changes of texts that satisfy a rule."""

import random
from collections.abc import Callable, Sequence

WORDS = [
    "tea",
    "river",
    "cup",
    "pot",
    "leaf",
    "sip",
    "Tea",
    "TEA",
    "the",
    "a",
    "an",
    "is",
    "I",
    "you",
    "we",
    "and",
    "but",
    "or",
    "because",
    "so",
    "he",
    "she",
    "it",
    "they",
    "them",
    "my",
    "3",
    "14",
    "12",
    "7.5",
    "Emma",
    "Noah",
    "Liam",
    "level",
    "Anna",
    "radar",
    "stats",
    "civic",
    "don't",
    "it's",
    "well-known",
    "Straße",
    "café",
    "über",
    "茶",
    "東京",
    "чай",
    "शहर",
    "ไทย",
    "🙂",
    "❤️",
    "e-mail",
    "A",
    "NASA",
    "yes",
    "no",
    "maybe",
    "Any",
    "other",
    "questions?",
    "run",
    "banana",
    "bb",
    "apple",
    "ant",
    "zebra",
    "cat",
    "dog",
    "quiet",
    "Write",
    "line",
    "about",
    "eagle",
    "bald",
    "of",
    "in",
    "to",
]
ENDS = (".", ".", ".", "?", "!", "...", "?!", "!?", "。", "؟", "!!", ' "', "", ":", ";", ".”", " 😀", ".)", '."')
JOINTS = (" ", " ", " ", " ", ", ", " - ", "-", "\n", "; ", " (", ") ", ' "', '" ', "  ", "/", "'", "\u00a0", "\t")
BREAKS = (" ", " ", " ", "\n", "\n\n", "\n\n\n", "\n***\n", " ****** ", "\n* ", "\n- ", "\n  - ", "\n * ")
PIECES = (
    "[x]",
    "[a b]",
    "*this*",
    "**that**",
    "<<title>>",
    "<i>x</i> y",
    "P.S. tea",
    "p. s.",
    "((((()))))",
    '"a \'b "c" d\' e"',
    '"',
    "“q”",
    "Section 1",
    "My answer is yes.",
    "My Answer:",
    '{"a": 1}',
    "```json\n{}\n```",
    "1999-02-30",
    "\u200b",
    "e\u0301",
    "***",
    "******",
    "...",
    ",",
    "Dr. No",
    "p.m.",
    "\\",
    "\r\n",
    "---",
    "‽",
)


SPOKEN = {
    "en": (
        "The weather will be nice again tomorrow.",
        "Most people in this town drink tea with a little milk.",
        "She asked whether the train had left, but nobody knew.",
        "What would you do if you had a whole day without any work?",
    ),
    "de": (
        "Das Wetter wird morgen wieder schöner.",
        "Die meisten Leute in dieser Stadt trinken Tee mit etwas Milch.",
        "Sie fragte, ob der Zug schon abgefahren sei, aber niemand wusste es.",
        "Was würdest du tun, wenn du einen ganzen Tag lang keine Arbeit hättest?",
    ),
    "fr": (
        "Demain, il fera de nouveau beau.",
        "La plupart des gens de cette ville boivent du thé avec un peu de lait.",
        "Elle a demandé si le train était déjà parti, mais personne ne le savait.",
    ),
    "es": (
        "Mañana volverá a hacer buen tiempo.",
        "La mayoría de la gente de esta ciudad bebe té con un poco de leche.",
        "Preguntó si el tren ya había salido, pero nadie lo sabía.",
    ),
    "ru": (
        "Завтра снова будет хорошая погода.",
        "Большинство людей в этом городе пьют чай с молоком.",
        "Она спросила, ушёл ли уже поезд, но никто этого не знал.",
    ),
    "ja": ("明日はまた天気が良くなるでしょう。", "この町のほとんどの人は牛乳を少し入れてお茶を飲みます。"),
}
"""Sentences for rules on languages: classifiers see what they like in words at random."""


def spoken(rng: random.Random) -> str:
    """Return up to six sentences of one language."""
    sentences = SPOKEN[rng.choice(("en", "de", *SPOKEN))]
    return cased(" ".join(rng.choice(sentences) for _ in range(rng.randint(1, 6))), rng)


def sentence(rng: random.Random) -> str:
    words = [rng.choice(WORDS) for _ in range(rng.choice((1, 2, 3, 4, 6, 9)))]
    joints = JOINTS if rng.random() < 0.5 else (" ",)
    return "".join(word + rng.choice(joints) for word in words).rstrip() + rng.choice(ENDS)


def mixed(rng: random.Random) -> str:
    """Put sentences and pieces together; a third of the texts has one case."""
    parts = []
    for _ in range(rng.choice((1, 1, 2, 3, 3, 5, 8))):
        parts.append(rng.choice(PIECES) if rng.random() < 0.15 else sentence(rng))
        parts.append(rng.choice(BREAKS) if rng.random() < 0.4 else " ")
    return cased("".join(parts[:-1]), rng)


def cased(value: str, rng: random.Random) -> str:
    change = rng.choice((str, str, str, str, str.lower, str.upper, str.title, str.strip))
    return change(value)


def changed(value: str, rng: random.Random) -> str:
    """Change a text in up to three places: what is put in, left out or doubled is a character, a word or a piece."""
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        i, j = sorted((rng.randint(0, len(value)), rng.randint(0, len(value))))
        j = min(j, i + rng.choice((0, 1, 1, 2, 5, 20)))
        filler = rng.choice((WORDS, PIECES, ENDS, JOINTS, BREAKS, ("",)))
        put = rng.choice((rng.choice(filler), value[i:j] * 2, value[i:j].swapcase()))
        value = value[:i] + put + value[j:]
    return value


def texts(seeds: Sequence[str], count: int, seed: int, draw: Callable[[random.Random], str] = mixed) -> list[str]:
    """Return texts that are not blank: half drawn, half changes of the seeds, if there are any."""
    rng = random.Random(seed)
    drawn: list[str] = []
    while len(drawn) < count:
        new = changed(rng.choice(seeds), rng) if seeds and len(drawn) % 2 else draw(rng)
        if new.strip():
            drawn.append(new)
    return drawn
