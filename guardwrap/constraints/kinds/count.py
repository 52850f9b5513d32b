"""The ``Count`` constraint: how often something occurs in the text, or how large a share of it is."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from typing import Literal, NamedTuple, get_args

import regex

from guardwrap.constraints.field_checks import (
    about,
    is_between,
    limits_in_words,
    listed,
    number_in_words,
    require,
    require_booleans,
    require_choice,
    shown,
    verdict_on_count,
)
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.regex_analysis import Occurrences, occurrences
from guardwrap.constraints.sentences import WORD, sentences
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import Unsatisfiable, is_count, is_number
from guardwrap.support.time_limits import check_deadline, matches

_PRONOUNS = {
    "en": "i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her "
    "hers herself it its itself they them their theirs themselves",
    "de": "ich mir mich mein meine meiner meinem meinen meines du dir dich dein deine deiner deinem deinen deines er "
    "ihm ihn sein seine seiner seinem seinen seines sie ihr ihre ihrer ihrem ihren ihres es wir uns unser unsere "
    "unserer unserem unseren unseres euch euer eure eurer eurem euren eures ihnen sich",
    "fr": "je j me m moi tu te t toi il elle on le la l lui nous vous ils elles les leur leurs se s soi eux mon ma mes "
    "ton ta tes son sa ses notre nos votre vos mien mienne tien tienne sien sienne",
    "es": "yo me mí mi mis mío mía míos mías tú te ti tu tus tuyo tuya tuyos tuyas él ella ello lo la le se sí su sus "
    "suyo suya suyos suyas nosotros nosotras nos nuestro nuestra nuestros nuestras vosotros vosotras os vuestro "
    "vuestra vuestros vuestras usted ustedes ellos ellas los las les conmigo contigo consigo",
    "pt": "eu me mim meu minha meus minhas tu te ti teu tua teus tuas você vocês ele ela o a lhe se si seu sua seus "
    "suas nós nos nosso nossa nossos nossas vós vos vosso vossa vossos vossas eles elas os as lhes comigo contigo "
    "consigo conosco",
    "pl": "ja mnie mi mną mój moja moje ty ciebie cię tobie ci tobą twój twoja twoje on ona ono jego go jemu mu nim "
    "jej ją nią my nas nam nami nasz nasza nasze wy was wam wami wasz wasza wasze oni one ich im nimi się siebie "
    "sobie sobą swój swoja swoje",
    "ru": "я меня мне мной мой моя моё мои ты тебя тебе тобой твой твоя твоё твои он она оно его ему им нём её ей ней "
    "мы нас нам нами наш наша наше наши вы вас вам вами ваш ваша ваше ваши они их ими них себя себе собой свой "
    "своя своё свои",
    "tr": "ben beni bana benim bende benden sen seni sana senin sende senden o onu ona onun onda ondan biz bizi bize "
    "bizim bizde bizden siz sizi size sizin sizde sizden onlar onları onlara onların kendi kendim kendisi",
}
_CONJUNCTIONS = {
    "en": "and but nor for or so yet",
    "de": "und oder aber denn sondern doch sowie",
    "fr": "mais ou et donc or ni car",
    "es": "y e o u pero ni sino mas",
    "pt": "e ou mas nem porém pois logo",
    "pl": "i oraz lub albo ale lecz ani więc",
    "ru": "и а но или да либо однако",
    "tr": "ve veya ya ama fakat ancak ile",
}
_STOP_WORDS = {
    "en": "a about above after again against all am an and any are aren't as at be because been before being below "
    "between both but by can couldn't did didn't do does doesn't doing don't down during each few for from "
    "further had hadn't has hasn't have haven't having how if in into is isn't just more most no nor not now of "
    "off on once only or other out over own same shan't should shouldn't so some such than that the then there "
    "these this those through to too under until up very was wasn't were weren't what when where which while who "
    "whom why will with won't wouldn't s t d ll m o re ve y ain don aren couldn didn doesn hadn hasn haven isn ma "
    "mightn mustn needn shan shouldn wasn weren won wouldn",
    "de": "aber als am an auch auf aus bei bin bis bist da damit dann das dass dem den der des die dies diese diesem "
    "diesen dieser dieses doch dort durch ein eine einem einen einer eines für hab habe haben hat hatte hatten "
    "hier hin hinter im in ist ja kann kein keine keinem keinen keiner können mit muss nach nicht nichts noch nun "
    "nur ob oder ohne sehr sind so um und unter vom von vor war waren was weil wenn werden wie wieder will wird "
    "wo zu zum zur zwischen über",
    "fr": "à au aux avec ce ces cette cet c d dans de des du en est et eu être ont a avait étaient était mais même ne "
    "n ni non ou où par pas plus pour qu que qui quand sans si sont sous sur tout tous très un une y comme donc car "
    "alors",
    "es": "a al algo ante antes aquí así aunque cada como con contra cual cuando de del desde donde durante e el en "
    "entre era es esa ese eso esta este esto está están fue ha hay hasta la las los más muy no o otra otro para "
    "pero poco por porque que qué quien se ser si sin sobre son también tan tanto todo todos u un una uno unos y "
    "ya",
    "pt": "a ao aos as até com como da das de dela dele do dos e é em entre era essa esse esta este está foi há isso "
    "isto já mais mas mesmo muito na nas nem no nos não o os ou para pela pelas pelo pelos por qual quando que "
    "quem se sem ser são só também um uma à às",
}
LISTED = {"pronouns": _PRONOUNS, "conjunctions": _CONJUNCTIONS, "stop_words": _STOP_WORDS}
"""The lists by the name of their item and by language (ISO 639-1), each with white space between the words."""


def languages_of(item: str) -> tuple[str, ...]:
    """Return the languages in which a list exists."""
    return tuple(sorted(LISTED[item]))


@cache
def listed_words(item: str, language: str) -> frozenset[str]:
    """Return the words of a list, in lower case. Stop words include the pronouns."""
    words = LISTED[item][language].split()
    if item == "stop_words":
        words += _PRONOUNS[language].split()
    return frozenset(words)


Item = Literal[
    "letters",
    "uppercase_letters",
    "lowercase_letters",
    "vowels",
    "consonants",
    "digits",
    "punctuation",
    "emoji",
    "words",
    "capital_words",
    "lowercase_words",
    "palindromes",
    "pronouns",
    "conjunctions",
    "stop_words",
    "statements",
    "questions",
    "exclamations",
    "numbers",
    "bullets",
    "numbered_items",
    "headings",
    "placeholders",
    "highlights",
]


def plain_word(word: str) -> str:
    """Return a word in lower case, with straight apostrophes and composed accents."""
    return unicodedata.normalize("NFC", word.casefold().replace("’", "'"))


def is_palindrome(word: str) -> bool:
    """Whether a word of at least three letters and digits is the same backwards, whatever stands between them."""
    check_deadline()
    letters = [char for char in plain_word(word) if char.isalnum()]
    return len(letters) > 2 and letters == letters[::-1]


class _Rule(NamedTuple):
    """How an item is recognized."""

    # Expression of one item. Whether it matches at a place must not depend on more than ``tail`` characters after the
    # match.
    pattern: str
    tail: int = 0  # number of characters after a match that may still change where it ends
    begun: bool = True  # whether an item counts as soon as it has begun, because it stays one however it continues
    keep: Callable[[str], bool] | None = None  # which matches count; None for all
    one: bool = False  # whether every match is a single character


_PICTURE = r"(?:\p{Emoji_Presentation}|\p{Extended_Pictographic}\uFE0F)\p{Emoji_Modifier}?"
COUNTED_ENDS = {"statements": ".。｡।…۔", "questions": "?？؟", "exclamations": "!！"}
"""What the sentences end with that are counted."""

AFTER_ENDS = "\"'”’“‘»«)]」』）】*_ \n\t"
"""What may follow the last mark of a sentence."""

_RULES: dict[str, _Rule] = {
    "letters": _Rule(r"\p{L}", one=True),
    "uppercase_letters": _Rule(r"\p{Lu}", one=True),
    "lowercase_letters": _Rule(r"\p{Ll}", one=True),
    "vowels": _Rule("[aeiouAEIOU]", one=True),
    "consonants": _Rule("[b-df-hj-np-tv-zB-DF-HJ-NP-TV-Z]", one=True),
    "digits": _Rule(r"\p{Nd}", one=True),
    "punctuation": _Rule(r"\p{P}", one=True),
    # Two letters of a flag, or a picture with its skin color and those that it is joined to.
    "emoji": _Rule(rf"\p{{RI}}\p{{RI}}|{_PICTURE}(?:\u200D{_PICTURE})*", tail=3),
    "words": _Rule(WORD, tail=2),
    "capital_words": _Rule(WORD, tail=2, begun=False, keep=str.isupper),
    "lowercase_words": _Rule(WORD, tail=2, begun=False, keep=str.islower),
    "palindromes": _Rule(WORD, tail=2, begun=False, keep=is_palindrome),
    **{name: _Rule(WORD, tail=2, begun=False) for name in LISTED},
    **{name: _Rule("", begun=False) for name in COUNTED_ENDS},
    "numbers": _Rule(r"(?<!\w)[-+]?\p{Nd}+(?:[.,]\p{Nd}+)*", tail=2),
    "bullets": _Rule(r"(?m)^[ \t]*[*\-+•][ \t]+\S"),
    "numbered_items": _Rule(r"(?m)^[ \t]*\p{Nd}{1,3}[.)][ \t]+\S"),
    "headings": _Rule(r"(?m)^#{1,6}[ \t]+\S"),
    "placeholders": _Rule(r"\[[^\[\]\n]{1,200}\]"),
    "highlights": _Rule(r"\*{1,2}[^*\s](?:[^*\n]{0,200}[^*\s])?\*{1,2}", tail=1, begun=False),
}

_COMPILED = {
    item: regex.compile(f"(?:{rule.pattern})+" if rule.one else rule.pattern, regex.VERSION1)
    for item, rule in _RULES.items()
}


def item_pattern(item: str) -> str:
    """Return the expression of an item, for version 1 of ``regex``; "" if it has none."""
    return _RULES[item].pattern


def is_run(item: str | None) -> bool:
    """Whether what is found of an item are runs of single characters, each of which counts; None is a pattern."""
    return item is not None and _RULES[item].one


def total(item: str | None, found: Iterator[str]) -> int:
    """Count what is found of an item; None is a pattern."""
    return sum(map(len, found)) if is_run(item) else sum(1 for _ in found)


def found_items(item: str, text: str, language: str = "en") -> Iterator[str]:
    """Yield the items of a text; single characters in runs."""
    return _found(item, text, language, len(text), whole=True)


def settled_items(item: str, prefix: str, language: str = "en", *, exactly: bool = False) -> Iterator[str]:
    """Yield the items that every text with this prefix has.

    With ``exactly``, only those which are the same in every such text: a word counts as soon as it has begun, but may
    still become a longer one.
    """
    rule = _RULES[item]
    tail = 0 if rule.begun and not exactly else rule.tail
    return _found(item, prefix, language, len(prefix) - tail, whole=False)


def _found(item: str, text: str, language: str, last: int, *, whole: bool) -> Iterator[str]:
    if item in COUNTED_ENDS:
        ended = sentences(text) if whole else sentences(text)[:-1]
        yield from (sentence for sentence in ended if sentence.rstrip(AFTER_ENDS).endswith(tuple(COUNTED_ENDS[item])))
        return
    keep = (lambda word: plain_word(word) in listed_words(item, language)) if item in LISTED else _RULES[item].keep
    for match in matches(_COMPILED[item], text):
        if match.end() <= last and (keep is None or keep(match.group())):
            yield match.group()


@dataclass(frozen=True, eq=False, repr=False)
class Count(TextConstraint):
    r"""How often something occurs is between two limits.

    Parameters
    ----------
    of
        What is counted, in every script:

        - ``"letters"``, ``"uppercase_letters"``, ``"lowercase_letters"``, ``"digits"``, ``"punctuation"``, ``"emoji"``;
          ``"vowels"`` and ``"consonants"`` from A to Z.
        - ``"words"``: letters, digits, ``_``, and apostrophes and hyphens between them; in Chinese and Japanese, each
          Han character, each Hiragana and each run of Katakana. ``"capital_words"`` and ``"lowercase_words"``: words
          without a letter of the other case; ``"palindromes"``: words of at least three letters.
        - ``"pronouns"`` (personal and possessive ones), coordinating ``"conjunctions"`` and ``"stop_words"``, from
          short lists for ``language``.
        - ``"statements"``, ``"questions"``, ``"exclamations"``: sentences that end in a full stop, a question mark or
          an exclamation mark.
        - ``"numbers"`` such as ``1,250.5``.
        - ``"bullets"``, ``"numbered_items"`` and ``"headings"`` at the beginning of a line, as in Markdown;
          ``"placeholders"`` such as ``[name]``; ``"highlights"`` such as ``*this*`` and ``**this**``.

        None if ``pattern`` is given.
    pattern
        Regular expression of what is counted, of which the matches must not overlap; None if ``of`` is given.
    ignore_case
        Whether the pattern ignores case.
    min, max
        Limits, inclusive; None means no limit.
    unique
        Whether equal items count once. Case is ignored.
    each
        Whether the limits are for each item by itself: with ``max=2``, no word occurs more than twice. Case is ignored.
    shortest
        Number of characters; items with fewer do not count.
    language
        Language of the word lists (ISO 639-1): ``"de"``, ``"en"``, ``"es"``, ``"fr"``, ``"pt"``, and for pronouns and
        conjunctions also ``"pl"``, ``"ru"`` and ``"tr"``.
    share_of
        An item as for ``of``: the limits are for the number of items divided by the number of these, or 0 without
        any.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid.
    Unsatisfiable
        If ``min`` exceeds ``max``.

    Notes
    -----
    Attempts end as soon as there are certainly more than ``max``, except for shares, and for a pattern whose matches
    have no greatest length.

    Examples
    --------
    >>> Count("capital_words", max=1).accepts("NASA is not ESA.")
    False
    >>> Count("words", unique=True, min=3).accepts("Tea, tea and tea")
    False
    >>> Count("vowels", share_of="letters", max=0.4).accepts("rhythm and blues")
    True
    """

    of: Item | None = None
    pattern: str | None = field(default=None, kw_only=True)
    ignore_case: bool = field(default=False, kw_only=True)
    min: int | float | None = field(default=None, kw_only=True)
    max: int | float | None = field(default=None, kw_only=True)
    unique: bool = field(default=False, kw_only=True)
    each: bool = field(default=False, kw_only=True)
    shortest: int = field(default=1, kw_only=True)
    language: str = field(default="en", kw_only=True)
    share_of: Item | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["count"] = field(default="count", kw_only=True)

    def __post_init__(self) -> None:
        require((self.of is None) != (self.pattern is None), "Count needs either of= or pattern=")
        for item, name in ((self.of, "of"), (self.share_of, "share_of")):
            if item is not None:
                require_choice(item, get_args(Item), name)
        require_booleans(self, "ignore_case", "unique", "each")
        require(not (self.ignore_case and self.pattern is None), "ignore_case applies to pattern= only")
        whole = is_count(self.shortest) and self.shortest > 0
        require(whole, f"shortest={shown(self.shortest)}: give a whole number of at least 1")
        require(not (self.each and (self.unique or self.share_of)), "each cannot be used with unique or share_of")
        require(self.shortest == 1 or not is_run(self.of), "shortest applies to items of several characters only")
        listed = [item for item in (self.of, self.share_of) if item in LISTED]
        require(bool(listed) or self.language == "en", f"language applies to {', '.join(LISTED)} only")
        for item in listed:
            require_choice(self.language, languages_of(str(item)), "language")
        require(self.min is not None or self.max is not None, "Count needs min, max or both")
        for name, limit in (("min", self.min), ("max", self.max)):
            if limit is None:
                continue
            if self.share_of is None:
                require(is_count(limit), f"limit {shown(limit)}: give a whole number of at least 0")
                continue
            in_range = is_number(limit) and limit >= 0
            require(in_range, f"limit {shown(limit)}: give a share of at least 0, such as 0.5")
            object.__setattr__(self, name, float(limit))  # one canonical form means one digest
        if self.min is not None and self.max is not None and self.min > self.max:
            raise Unsatisfiable(f"Count min={number_in_words(self.min)} exceeds max={number_in_words(self.max)}")
        object.__setattr__(self, "on", read_view(self.on))
        with about("pattern"):
            self._occurrences  # noqa: B018  # so that an invalid expression is noticed now

    @cached_property
    def _occurrences(self) -> Occurrences | None:
        return None if self.pattern is None else occurrences(self.pattern, ignore_case=self.ignore_case)

    def measure(self, text: str) -> float:
        """Return the number of items in one string, or their share; with ``each``, that of the most frequent item."""
        if self.each:
            return max(self._frequencies(self._items(text)).values(), default=0)
        count = self._number(self._items(text))
        if self.share_of is None:
            return count
        whole = total(self.share_of, found_items(self.share_of, text, self.language))
        return count / whole if whole else 0.0

    def holds(self, text: str) -> bool:
        if self.each:
            return all(is_between(count, self.min, self.max) for count in self._frequencies(self._items(text)).values())
        return is_between(self.measure(text), self.min, self.max)

    def fault(self, text: str) -> str:
        what = "matches" if self.of is None else f"{'different ' * self.unique}{self.of.replace('_', ' ')}"
        if self.each:
            wrong = (item for item, n in self._frequencies(self._items(text)).items() if not self._is_within(n))
            return f"has {what} that do not occur {limits_in_words(self.min, self.max)} times each: {listed(wrong)}"
        share = "" if self.share_of is None else f" per {self.share_of.replace('_', ' ').removesuffix('s')}"
        items = listed(self._items(text)) if self.of is None else ""  # of units, such as words, the number says enough
        limits = f"not {limits_in_words(self.min, self.max)}{f': {items}' if items else ''}"
        return f"has {number_in_words(self.measure(text))} {what}{share}, {limits}"

    def found_in(self, text: str) -> str:
        if self.each or self.share_of is not None:
            return ""
        what = f"matches: {listed(self._items(text))}" if self.of is None else self.of.replace("_", " ")
        return f"has {number_in_words(self.measure(text))} {what}".removesuffix(": ")

    def _is_within(self, count: float) -> bool:
        return is_between(count, self.min, self.max)

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Judge by the items that count whatever follows."""
        unsettled = self._occurrences is not None and self._occurrences.reach is None
        if self.share_of is not None or unsettled:
            return Verdict.UNDECIDED
        if self.each:
            if self.max is None:  # what follows may be an item that is too rare
                return Verdict.UNDECIDED
            most = max(self._frequencies(self._certain(prefix)).values(), default=0)
            return Verdict.VIOLATED if most > self.max else Verdict.UNDECIDED
        return verdict_on_count(self._number(self._certain(prefix)), self.min, self.max)

    def _items(self, text: str) -> Iterator[str]:
        if self._occurrences is not None:
            return self._long(match.group() for match in self._occurrences.find(text))
        return self._long(found_items(str(self.of), text, self.language))

    def _certain(self, prefix: str) -> Iterator[str]:
        """Yield the items that every text with this prefix has."""
        if self._occurrences is not None:
            return self._long(match.group() for match in self._occurrences.find(prefix, settled=True))
        return self._long(settled_items(str(self.of), prefix, self.language, exactly=self.unique or self.each))

    def _long(self, items: Iterator[str]) -> Iterator[str]:
        return items if self.shortest == 1 else (item for item in items if len(item) >= self.shortest)

    def _number(self, items: Iterator[str]) -> int:
        return len(self._frequencies(items)) if self.unique else total(self.of, items)

    def _frequencies(self, items: Iterator[str]) -> Counter[str]:
        folded = (item.casefold() for item in items)
        return Counter(chain.from_iterable(folded) if is_run(self.of) else folded)
