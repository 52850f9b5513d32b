"""The ``OnlyFrom`` constraint: hosts, URLs, e-mail addresses, citations and the like only from a list."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args
from urllib.parse import unquote

import regex

from guardwrap.constraints.field_checks import about, listed, require, require_booleans, require_choice, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.regex_analysis import Occurrences, occurrences
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import is_count
from guardwrap.support.limits import count_items
from guardwrap.support.time_limits import matches

Item = Literal["hosts", "urls", "emails", "citations"]


@dataclass(frozen=True)
class Reference:
    """An item of a text."""

    form: str  # the form in which it is compared
    wider: tuple[str, ...] = ()  # entries of a list that allow it among others, such as ``"*.example.com"``


@dataclass(frozen=True)
class Sort:
    """A sort of items."""

    # returns the items of a text, or, if its second argument is true, those that no continuation can change
    find: Callable[[str, bool], Iterator[Reference]]
    entry: Callable[[str], str | None]  # returns the form of an entry of a list; None if it is invalid


# --- hosts and URLs ---------------------------------------------------------------------------------------------------

_DOTS = ".。．｡"
_TLDS = (
    "com org net info biz edu gov mil int io ai app dev co me tv xyz online site shop store top club live blog cloud "
    "tech news page link "
    # country codes, except those that are frequent ends of file names or words, such as md, py, sh, rs, so, st
    "ac ae ar at au be bg br by ca ch ci cl cn cz de dk ee eg es eu fi fr ge gg gr hk hr hu id ie il in iq ir is it jp "
    "ke kr kz lt lu lv ma mx my ng nl no nz pe ph pk pl pt qa ro ru sa se sg si sk su th tn tr tw ua ug uk us uy uz ve "
    "vn za рф 中国 中國 香港 한국 भारत مصر"
)
_LABEL = r"[\p{L}\p{N}](?:[\p{L}\p{M}\p{N}_-]{0,61}[\p{L}\p{M}\p{N}])?"
_STOP = r"\s<>\"“”„«»「」『』`|^\p{Cc}"
_SCHEME = r"(?<![\p{L}\p{N}+.-])(?:(?:https?|wss?|ftp):[/\\]|\p{L}[\p{L}\p{N}+.-]{1,20}:[/\\]{2})"
_WWW = rf"(?<![\p{{L}}\p{{N}}@.-])www[{_DOTS}]"
_BOTH_SLASHES = r"(?<![:\p{L}\p{N}/\\])//(?=[\p{L}\p{N}])"
_ANY_START = rf"(?:{_SCHEME}|{_WWW}|{_BOTH_SLASHES})"
_URL = regex.compile(rf"{_ANY_START}[^{_STOP}]*", regex.IGNORECASE)
# Up to the host, so that a URL within the path of another one is found: what follows a comma is often a second link.
_ORIGIN = regex.compile(rf"{_ANY_START}[/\\]*[^{_STOP}/\\?#]*", regex.IGNORECASE)
# Where Markdown ends a link, as in "[https://a.com](https://b.com)". What follows must not be read as more of a host.
_BETWEEN_LINKS = regex.compile(
    rf"(?<=[)\]}}）】])(?=[!,;，、]?[(\[{{（【][\p{{L}}\p{{M}}\p{{Nd}}!:_()\[\]{{}}（）【】-]{{0,200}}+[{_STOP}/\\?#])"
)
_EMAIL_CHARACTER = r"[\p{L}\p{M}\p{N}._%+'’-]"
_EMAIL = regex.compile(rf"(?<!{_EMAIL_CHARACTER}){_EMAIL_CHARACTER}{{1,64}}+[@＠][\p{{L}}\p{{M}}\p{{N}}{_DOTS}_-]*")
# After a letter that is not ASCII, 。 ends a sentence.
_BARE = regex.compile(
    rf"(?<!%(?=[0-9A-Fa-f]{{2}}))(?<![\p{{L}}\p{{M}}\p{{N}}@＠/\\._-])"
    rf"(?:{_LABEL}(?:\.|(?<=[A-Za-z0-9])[{_DOTS}])){{1,8}}(?P<ending>[\p{{L}}\p{{M}}\p{{N}}-]{{2,63}})"
    r"(?![\p{L}\p{M}\p{N}_-])"
)
_OF_A_HOST = regex.compile(rf"[\p{{L}}\p{{M}}\p{{N}}{_DOTS}_-]")
_LONGEST_LABEL = 63  # RFC 1035; decoding takes quadratic time
_INVISIBLE = regex.compile(r"\p{Cf}+")
_ENDINGS = frozenset(unicodedata.normalize("NFKC", tld) for tld in _TLDS.split())
_CLOSING = ".,;:!?…。，、；：！？'’*_~"
_PAIRS = {")": "(", "]": "[", "}": "{", "）": "（", "】": "【"}
_PORT = regex.compile(r":[0-9]*$")
_ABSOLUTE = regex.compile(r"(\p{L}[\p{L}\p{N}+.-]*):/")


def _host(authority: str) -> str:
    """Return the host of a URL's authority (``user@host:port``) as browsers read it, in Unicode."""
    host = unquote(authority.rpartition("@")[2])
    host = unicodedata.normalize("NFKC", host).casefold().rpartition("@")[2]
    host = _PORT.sub("", host).replace("。", ".").strip(".")
    return unicodedata.normalize("NFKC", ".".join(map(_unpunycoded, host.split(".")))).casefold()


def _unpunycoded(label: str) -> str:
    if not label.startswith("xn--") or len(label) > _LONGEST_LABEL:
        return label
    try:
        decoded = label[4:].encode("ascii").decode("punycode")
    except (UnicodeError, OverflowError):
        return label
    # Only what a name would be encoded as: others, such as ``xn--good-``, are names of their own.
    return decoded if not decoded.isascii() and decoded == unicodedata.normalize("NFKC", decoded).casefold() else label


def _without_end(url: str) -> str:
    """Return a URL without the punctuation of the sentence that follows it."""
    counts = {char: url.count(char) for pair in _PAIRS.items() for char in pair}
    end = len(url)
    while end and (
        url[end - 1] in _CLOSING or counts.get(url[end - 1], 0) > counts.get(_PAIRS.get(url[end - 1], ""), 0)
    ):
        if url[end - 1] in _PAIRS:
            counts[url[end - 1]] -= 1
        elif url[end - 1] not in _CLOSING:  # an opening bracket
            break
        end -= 1
    return url[:end]


def _parts(url: str) -> tuple[str, str, str]:
    r"""Return scheme, authority (``user@host:port``) and the rest of a URL, with ``\\`` as ``/``."""
    url = url.replace("\\", "/")
    scheme = None if url[:3].casefold() == "www" else _ABSOLUTE.match(url)
    rest = url.lstrip("/") if scheme is None else url[scheme.end() :].lstrip("/")
    end = next((i for i, char in enumerate(rest) if char in "/?#"), len(rest))
    return "" if scheme is None else scheme[1].casefold(), _without_end(rest[:end]), rest[end:]


def _of_host(host: str) -> Reference:
    labels = host.split(".")[:12]
    return Reference(host, tuple("*." + ".".join(labels[i:]) for i in range(1, len(labels))))


def _readable(text: str, settled: bool) -> str:
    """Return a text without invisible characters, and with a space between links, and at its end if that is known."""
    text = _INVISIBLE.sub("", text)
    return str(_BETWEEN_LINKS.sub(" ", text if settled else f"{text} "))


def _ended(pattern: Any, text: str) -> Iterator[str]:
    """Yield the matches that no later text makes longer, without the punctuation that ends a sentence."""
    for match in matches(pattern, text):
        if match.end() < len(text):
            yield _without_end(match.group())


def _hosts(text: str, settled: bool) -> Iterator[Reference]:
    text = _readable(text, settled)
    for origin in _ended(_ORIGIN, text):
        host = _host(_parts(origin)[1])
        if host:
            yield _of_host(host)
    for address in _ended(_EMAIL, text):
        host = _host(address.replace("＠", "@").rpartition("@")[2])
        if "." in host:
            yield _of_host(host)
    open_from = len(text)  # from here on, a name may still grow
    while open_from and _OF_A_HOST.match(text[open_from - 1]):
        open_from -= 1
    for match in matches(_BARE, text):
        if match.end() < open_from:
            host = _host(match.group())
            ending = match["ending"]  # "tea.It" lacks a space
            if host.rpartition(".")[2] in _ENDINGS and ending in (ending.lower(), ending.upper()):
                yield _of_host(host)


def _host_entry(entry: str) -> str | None:
    below = "*." if entry.startswith("*.") else ""
    host = _host(entry.removeprefix("*."))
    plain = regex.fullmatch(r"[\p{L}\p{M}\p{N}._:\[\]-]+", host) is not None
    return below + host if plain else None


def _url(url: str) -> str:
    """Return the form of a URL: scheme, host, port if it is not the usual one, path and query."""
    scheme, authority, rest = _parts(url)
    scheme = scheme or "https"
    path, mark, query = rest.partition("#")[0].partition("?")
    port = _PORT.search(unicodedata.normalize("NFKC", authority.rpartition("@")[2]))
    number = "" if port is None else port.group()
    number = "" if number in (":", {"http": ":80", "https": ":443"}.get(scheme)) else number
    user, at, _ = authority.rpartition("@")
    return f"{scheme}://{user}{at}{_host(authority)}{number}{_path(path)}{mark}{query}"


def _path(path: str) -> str:
    """Return a path without ``.`` and ``..``, as browsers resolve it."""
    steps: list[str] = []
    for step in regex.sub("%2e", ".", path, flags=regex.IGNORECASE).split("/")[1:]:
        if step == "..":
            steps = steps[:-1]
        elif step != ".":
            steps.append(step)
    return "/" + "/".join(steps)


def _urls(text: str, settled: bool) -> Iterator[Reference]:
    for url in _ended(_URL, _readable(text, settled)):
        if _host(_parts(url)[1]):
            yield Reference(_url(url))


def _url_entry(entry: str) -> str | None:
    return _url(entry) if _ABSOLUTE.match(entry) and _host(_parts(entry)[1]) else None


def _email(address: str) -> str:
    local, _, host = address.replace("＠", "@").rpartition("@")
    return f"{unicodedata.normalize('NFKC', local).casefold()}@{_host(host)}"


def _emails(text: str, settled: bool) -> Iterator[Reference]:
    for written in _ended(_EMAIL, _readable(text, settled)):
        address = _email(written.lstrip(".'’-_"))
        host = address.rpartition("@")[2]
        if "." in host:
            yield Reference(address, ("*@" + host,))


def _email_entry(entry: str) -> str | None:
    return _email(entry) if regex.fullmatch(rf"(?:\*|{_EMAIL_CHARACTER}+)@[^\s@]+", entry) else None


# --- citations --------------------------------------------------------------------------------------------------------

_NUMBERS = r"\d{1,4}(?:\s?[–-]\s?\d{1,4})?"
_AND = "and|und|et|y|e|i|og|och|en|ve|и"
_NAME = r"\p{Lu}[\p{L}\p{M}'’-]*"
_PERSON = rf"{_NAME}(?:\ {_NAME}){{0,3}}"
_AUTHORS = rf"{_PERSON}(?:(?:,?\ (?:&|{_AND})\ |,\ ){_PERSON}){{0,5}}"
_YEAR = r"(?:\d{4}\p{Ll}?|n\.d\.|in\ press)"
_WORK = rf"{_AUTHORS}(?:,\ |\ et\ al\.?,?\ ){_YEAR}(?:,\ {_YEAR})*(?:[,:]\ [^;()]{{1,40}})?"
_CITATION = regex.compile(
    rf"\[(?P<numbers>\^?{_NUMBERS}(?:\s?[,;]\s?\^?{_NUMBERS})*)\]"
    rf"|\[(?P<keys>[^\[\]@]{{0,40}}-?@[^\[\]]{{1,400}})\]"
    r"|\[\^(?P<note>[\w:.-]{1,60})\]"
    r"|\\\w*cite\w*\*?\s{0,3}(?:\[[^\[\]]{0,80}\]){0,2}\{(?P<tex>[^{}]{1,400})\}"
    rf"|\((?:\p{{Ll}}[\p{{Ll}}.,]{{0,8}}\ ){{0,2}}(?P<works>{_WORK}(?:;\ {_WORK})*)\)",
    regex.VERBOSE,
)
_KEY = regex.compile(r"@([\p{L}\p{N}_][\p{L}\p{N}_:.#$%&+?<>~/-]*)")
_ONE_WORK = regex.compile(
    rf"(?P<authors>{_AUTHORS})(?:,\ |\ (?P<others>et\ al\.?),?\ )(?P<years>{_YEAR}(?:,\ {_YEAR})*)"
)
_MOST_NUMBERS = 1000


def _citations(text: str, _: bool) -> Iterator[Reference]:
    """Yield citations. Each one ends with a bracket, so nothing that follows can change it."""
    for match in matches(_CITATION, text):
        for form in _cited(match.groupdict()):
            yield Reference(form)


def _cited(groups: dict[str, str | None]) -> Iterator[str]:
    if numbers := groups["numbers"]:
        for part in regex.split(r"\s?[,;]\s?", numbers):
            first, *last = map(int, regex.split(r"\s?[–-]\s?", part.strip("^ ")))
            end = last[0] if last else first
            yield from map(str, range(first, min(end, first + _MOST_NUMBERS) + 1) if end >= first else (first, end))
    elif keys := groups["keys"]:
        yield from (key.rstrip(".:?") for key in _KEY.findall(keys))
    elif note := groups["note"]:
        yield note
    elif tex := groups["tex"]:
        yield from (key.strip() for key in tex.split(",") if key.strip())
    else:
        for work in _ONE_WORK.finditer(groups["works"] or ""):
            others = " et al." if work["others"] else ""
            for year in work["years"].split(", "):
                yield _work(f"{work['authors']}{others} {year}")


def _work(spelled: str) -> str:
    """Return the form of authors and year: without commas, with ``&`` between authors, in lower case."""
    text = unicodedata.normalize("NFKC", spelled).replace("’", "'")
    text = regex.sub(rf",?\s+(?!et\s+al)(?:{_AND})\s+", " & ", text)
    return " ".join(regex.sub(r"\bet\s+al\b\.?", "et al", text).replace(",", " ").split()).casefold()


def _citation_entry(entry: str) -> str | None:
    references = list(_citations(entry, False)) or list(_citations(f"({entry})", False))
    if references:
        return references[0].form if len(references) == 1 else None
    return entry.strip().lstrip("@^")


ITEMS: dict[Item, Sort] = {
    "hosts": Sort(_hosts, _host_entry),
    "urls": Sort(_urls, _url_entry),
    "emails": Sort(_emails, _email_entry),
    "citations": Sort(_citations, _citation_entry),
}


_FORMS = {
    "urls": "; begin it with a scheme: https://www.example.com also allows www.example.com",
    "hosts": "; give a host without scheme and path, such as example.com or *.example.com",
    "emails": "; give an address such as ada@example.com, or *@example.com",
    "citations": "; give one number, one key, or authors and year such as Smith, 2020",
}
"""What to write, for the error about an entry that is something else."""


@dataclass(frozen=True, eq=False, repr=False)
class OnlyFrom(TextConstraint):
    r"""Everything of a sort that the text names is on a list: its hosts, URLs, e-mail addresses or citations.

    Parameters
    ----------
    allowed
        The list.
    of
        What is looked for; give either this or ``pattern``.

        - ``"hosts"``: the host of each URL of any scheme, of ``www.…``, of each e-mail address, and of each bare name
          such as ``example.com`` with one of the usual endings. ``"*.example.com"`` on the list allows all hosts below
          ``example.com``.
        - ``"urls"``: each URL of any scheme, and ``www.…``. Fragments do not matter.
        - ``"emails"``: each e-mail address. ``"*@example.com"`` on the list allows all addresses of the host.
        - ``"citations"``: ``[1]``, ``[1, 3-5]``, ``[^1]``, ``[@key]``, ``\cite{key}``, ``(Smith, 2020)``,
          ``(Smith et al. 2020; Doe & Roe, 2019)``. The list has numbers, keys, or ``"Smith, 2020"``.
    pattern
        A regular expression (``regex`` module) of what is looked for. If it has a group, the first one is compared.
    min
        The least number of items that the text names.
    ignore_case
        Whether upper and lower case are the same; only with ``pattern``.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Notes
    -----
    Hosts are compared as browsers read them: without user names (``https://good.com@evil.com`` is ``evil.com``), ports
    and a dot at the end, with ``\`` as ``/``, percent-encoding and punycode decoded, and compatibility forms and case
    folded. Names that only look alike, such as ``gооd.com`` with Cyrillic letters, are different. A URL within another
    one counts, too.

    A prefix is VIOLATED as soon as an item that is not on the list has ended.

    Examples
    --------
    >>> rule = OnlyFrom(["example.com", "*.example.org"], of="hosts")
    >>> rule.accepts("See https://EXAMPLE.com/a or docs.example.org.")
    True
    >>> rule.accepts("See https://example.com@evil.net/")
    False
    >>> OnlyFrom(["1", "2"], of="citations").accepts("Tea is old [1], and good [1, 3].")
    False
    """

    allowed: Sequence[str]
    of: Item | None = field(default=None, kw_only=True)
    pattern: str | None = field(default=None, kw_only=True)
    min: int | None = field(default=None, kw_only=True)
    ignore_case: bool = field(default=False, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["only_from"] = field(default="only_from", kw_only=True)

    def __post_init__(self) -> None:
        allowed: Any = self.allowed
        several = tuple(allowed) if isinstance(allowed, Sequence) and not isinstance(allowed, str) else None
        valid = several is not None and all(isinstance(one, str) and one.strip() != "" for one in several)
        require(valid, f"allowed must be a list of texts that are not blank, not {shown(allowed)}")
        count_items(sum(map(len, several or ())), "allowed has")
        object.__setattr__(self, "allowed", several)
        require((self.of is None) != (self.pattern is None), "give either of or pattern")
        require_booleans(self, "ignore_case")
        require(self.pattern is not None or not self.ignore_case, "ignore_case requires pattern")
        require(self.min is None or is_count(self.min), f"min={shown(self.min)}: give a whole number of at least 0")
        if self.of is not None:
            require_choice(self.of, get_args(Item), "of")
            for one in self.allowed:
                entry = ITEMS[self.of].entry(one)
                form = _FORMS[self.of]
                require(
                    entry is not None, f"allowed: {shown(one)} is not one of the {self.of} that a list can have{form}"
                )
        object.__setattr__(self, "on", read_view(self.on))
        with about("pattern"):
            self._occurrences  # noqa: B018  # so that an invalid expression is noticed now

    @cached_property
    def _occurrences(self) -> Occurrences | None:
        return None if self.pattern is None else occurrences(self.pattern, ignore_case=self.ignore_case)

    @cached_property
    def _list(self) -> frozenset[str]:
        if self.of is None:
            return frozenset(map(self._plain, self.allowed))
        return frozenset(entry for one in self.allowed if (entry := ITEMS[self.of].entry(one)) is not None)

    def _plain(self, item: str) -> str:
        item = " ".join(item.split())
        return item.casefold() if self.ignore_case else item

    def holds(self, text: str) -> bool:
        number = 0
        for item in self._items(text):
            number += 1
            if not self._is_allowed(item):
                return False
        return number >= (self.min or 0)

    def fault(self, text: str) -> str:
        items = list(self._items(text))
        wrong = sum(not self._is_allowed(item) for item in items)
        what = "matches" if self.of is None else self.of
        if wrong:
            first = listed(item.form for item in items if not self._is_allowed(item))
            return f"has {wrong} of {len(items)} {what} that are not on the list: {first}"
        return f"has {len(items)} {what}, not at least {self.min}"

    def prefix_verdict(self, prefix: str) -> Verdict:
        allowed = all(self._is_allowed(item) for item in self._items(prefix, settled=True))
        return Verdict.UNDECIDED if allowed else Verdict.VIOLATED

    def _items(self, text: str, *, settled: bool = False) -> Iterator[Reference]:
        """Yield the items of a text, or those that every text with this prefix has."""
        if self._occurrences is None:
            assert self.of is not None
            yield from ITEMS[self.of].find(text, settled)
            return
        groups = self._occurrences.compiled.groups
        for match in self._occurrences.find(text, settled=settled):
            yield Reference(self._plain((match[1] if groups else match[0]) or ""))

    def _is_allowed(self, item: Reference) -> bool:
        return item.form in self._list or any(wider in self._list for wider in item.wider)
