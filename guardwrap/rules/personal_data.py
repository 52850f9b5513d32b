"""The ``PersonalData`` constraint: no e-mail addresses, phone, card and account numbers, and no ids of persons."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, get_args

import regex

from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.kinds.text import luhn
from guardwrap.constraints.views import View, read_view
from guardwrap.rules.hits import HitConstraint, HitRule
from guardwrap.support.time_limits import check_deadline, matches

# Text in scripts without spaces, and particles of Korean, may touch a number; a Latin letter makes it part of a name.
_BEGIN, _END = "(?<![A-Za-z0-9_])", "(?![A-Za-z0-9_])"
_GAP = r"(?:[ \t]{1,2}+|[ \t]?+[.\-/_][ \t]?+)"
"""What may separate the parts of a number that people group."""

_NO_SPACE = regex.compile(r"\S++")
_AT = regex.compile(r"(?<=[\p{L}\p{N}_%+\-'])@(?![1-4]x\.)(?:[\p{L}\p{N}\-]++\.)+(?:xn--[a-z0-9\-]{2,}+|\p{L}{2,}+)")
_PATH = regex.compile(r":(?:[\w.~\-]*+/|[\w.\-]*\.git(?!\w))")
_USER = regex.compile(r"(?<![\p{L}\p{N}._%+\-])(?:git|hg|svn)\Z")


def _named(name: str, is_hit: Callable[[str], bool]) -> Callable[[str], str | None]:
    return lambda run: name if is_hit(run) else None


def _has_email(run: str) -> bool:
    return "@" in run and any(not _is_place(run, *match.span()) for match in matches(_AT, run))


def _is_place(run: str, begin: int, end: int) -> bool:
    """Whether an @ and a host are of a place on a machine, as in ``git@host.org:path`` and ``ada@host.org:/x``."""
    is_git = run[end : end + 1] in (":", "/") and _USER.search(run, max(0, begin - 5), begin) is not None
    return is_git or _PATH.match(run, end) is not None


EMAIL = HitRule(_NO_SPACE, _named("an e-mail address", _has_email))

# The first four digits of payment networks' numbers; those from 2019 to 2099 are years.
_NETWORK = rf"{_BEGIN}(?<![0-9][.,]|\+)(?:[3-6][0-9]{{3}}|222[1-9]|22[3-9][0-9]|2[3-6][0-9]{{2}}|27[01][0-9]|2720)"
_FOURS = f"{_GAP}[0-9]{{4}}{_GAP}[0-9]{{4}}{_GAP}[0-9]"
# What follows a number of 16 digits may be its end or its security code.
_CARD_RUNS = (
    f"{_NETWORK}(?:[0-9]{{9,15}}+|{_FOURS}{{1,4}}+|{_GAP}[0-9]{{6}}{_GAP}[0-9]{{4,5}}+){_END}",
    f"{_NETWORK}{_FOURS}{{4}}{_GAP}[0-9]{{1,3}}+{_END}",
)


def _is_card(run: str) -> bool:
    return len(set(_alphanumeric(run))) > 1 and luhn(run)


def _alphanumeric(run: str) -> str:
    return "".join(filter(str.isalnum, run)).upper()


CARDS = tuple(HitRule(regex.compile(run), _named("a card number", _is_card), overlapped=True) for run in _CARD_RUNS)

# One character more than the longest, so that one that goes on is not taken for complete.
_IBAN_RUN = regex.compile(rf"{_BEGIN}[A-Za-z]{{2}}{_GAP}?+[0-9]{{2}}(?:{_GAP}?[A-Za-z0-9]){{11,31}}+")
_GROUPS = regex.compile("[A-Za-z0-9]+")


def _has_iban(run: str) -> bool:
    """Whether a run begins with an IBAN that ends where a group ends: words may follow it."""
    iban = import_module("stdnum.iban")
    begun = ""
    for group in _GROUPS.findall(run):
        begun += group
        if 15 <= len(begun) <= 34 and iban.is_valid(begun):
            return True
    return False


IBAN = HitRule(_IBAN_RUN, _named("a bank account", _has_iban), tail=4, overlapped=True, widest=140)

_IP_CHARACTERS = regex.compile(r"[0-9A-Za-z_.:\-]++")
_IPV4 = regex.compile(
    r"(?<![A-Za-z0-9_.\-])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![A-Za-z0-9_]|-(?!(?:[0-9]{1,3}\.){3})|\.[0-9])"
)


def _has_ip(run: str) -> bool:
    candidates = [match.group() for match in matches(_IPV4, run)]
    if run.count(":") >= 2:
        end = run.rstrip(".-")
        candidates.append(end if end.endswith("::") else end.rstrip(":"))
    return any(map(_is_ip, candidates))


def _is_ip(candidate: str) -> bool:
    try:
        address = ipaddress.ip_address(candidate)
    except ValueError:
        return False
    if not any(map(str.isdigit, candidate)):
        return False  # "ADA::DB" names a module
    return not (address.is_loopback or address.is_unspecified or address.is_link_local or address.is_multicast)


IP = HitRule(_IP_CHARACTERS, _named("an IP address", _has_ip))

# The number of digits bounds the work for a run; no phone number has more. Letters and a dash make it part of a name,
# such as "build-20260812-09", unless its first digits are as few as those of an area code.
_PHONE_RUN = regex.compile(
    r"(?<![A-Za-z0-9_+])(?<![A-Za-z0-9_]-(?=[0-9]{5}))[+(]?[0-9](?:[ \t.\-/()_]{0,2}+[0-9]){6,19}+(?![A-Za-z0-9_])"
)
_PHONE_STARTS = regex.compile(r"^|(?<=[ \t])[+(0]")
_NO_PHONE = regex.compile(  # dates, but not 01.42.68.53.00; decimals
    r"(?![0-9]{2,3}([./\-])[0-9]{2}(?:\1[0-9]{2,3}){3})[0-9]{1,4}[./\-][0-9]{1,2}[./\-][0-9]{1,4}+(?![0-9])"
    r"|[0-9]+\.[0-9]+\Z"
    r"|(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?:[^0-9]|(?:[0-9]{6})?\Z)"
)


_AS_DIALED = str.maketrans("\t_", " -")


def phone_rule(countries: tuple[str, ...]) -> HitRule:
    """Return the rule for phone numbers with a country code, and those that are dialed within some countries."""
    regions = tuple(country.upper() for country in countries)
    return HitRule(_PHONE_RUN, _named("a phone number", partial(_has_phone, regions=regions)), tail=3)


def _has_phone(run: str, regions: tuple[str, ...]) -> bool:
    for start in matches(_PHONE_STARTS, run):
        candidate = run[start.start() :]
        # The last group may be another number: "020 7946 0958 8 times".
        candidate = candidate.translate(_AS_DIALED)
        if _is_phone(candidate, regions) or _is_phone(candidate.rpartition(" ")[0], regions):
            return True
    return False


def _is_phone(candidate: str, regions: tuple[str, ...]) -> bool:
    phonenumbers = import_module("phonenumbers")
    if _NO_PHONE.match(candidate):
        return False
    for region in (None, *regions) if candidate.startswith(("+", "(+")) else regions:
        check_deadline()
        try:
            number = phonenumbers.parse(candidate, region)
        except phonenumbers.NumberParseException:
            continue
        if phonenumbers.is_valid_number(number):
            return True
    return False


_IDS: dict[str, dict[str, str]] = {
    "br": {"br.cpf": "(?:[0-9]{9}|[0-9]{3} [0-9]{3} [0-9]{3}) ?[0-9]{2}"},
    "de": {"de.idnr": "[0-9]{11}|[0-9]{2} [0-9]{3} [0-9]{3} [0-9]{3}"},
    "es": {
        "es.dni": "(?:[0-9]{8}|[0-9]{2} [0-9]{3} [0-9]{3}) ?[A-Z]",
        "es.nie": "[XYZ] ?(?:[0-9]{7}|[0-9] [0-9]{3} [0-9]{3}) ?[A-Z]",
    },
    "fr": {"fr.nir": "[1-478] ?[0-9]{2} ?[0-9]{2} ?(?:[0-9]{2}|2[AB]) ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}"},
    "gb": {"gb.nhs": "[0-9]{10}|[0-9]{3} [0-9]{3} [0-9]{4}"},
    "in": {"in_.aadhaar": "[0-9]{12}|[0-9]{4} [0-9]{4} [0-9]{4}", "in_.pan": "[A-Z]{5} ?[0-9]{4} ?[A-Z]"},
    "it": {"it.codicefiscale": "[A-Z]{3} ?[A-Z]{3} ?[0-9A-Z]{2}[A-Z][0-9A-Z]{2} ?[A-Z][0-9A-Z]{3} ?[A-Z]"},
    "nl": {"nl.bsn": "[0-9]{9}|[0-9]{4} [0-9]{2} [0-9]{3}"},
    "pl": {"pl.pesel": "[0-9]{11}|[0-9]{6} [0-9]{5}"},
    "us": {"us.ssn": "[0-9]{3} [0-9]{2} [0-9]{4}", "us.itin": "[0-9]{3} [0-9]{2} [0-9]{4}"},
}
"""The forms of numbers of persons, by country and module of stdnum; a space is any gap."""


def national_id_rules(countries: tuple[str, ...]) -> Iterator[HitRule]:
    """Yield the rules for numbers of persons in some countries."""
    for country in countries:
        for module, form in _IDS[country].items():
            run = regex.compile(rf"(?i:{_BEGIN}(?:{form.replace(' ', _GAP)}){_END})")
            is_valid = import_module(f"stdnum.{module}").is_valid
            yield HitRule(run, _named("a national id", partial(_is_id, is_valid=is_valid)), overlapped=True)


def _is_id(run: str, is_valid: Callable[[str], bool]) -> bool:
    return is_valid(_alphanumeric(run)) and not _LONE_LETTER.search(run)


_LONE_LETTER = regex.compile(r"[ \t][a-z]\Z")  # "en 20240115 y"


PersonalKind = Literal["email", "phone", "card", "iban", "ip", "national_id"]
PersonalCountry = Literal["br", "de", "es", "fr", "gb", "in", "it", "nl", "pl", "us"]

_LIBRARIES = {"phone": "phonenumbers", "iban": "stdnum", "national_id": "stdnum"}
_BY_COUNTRY = ("phone", "national_id")
_RULES: dict[str, Callable[[tuple[str, ...]], Iterable[HitRule]]] = {
    "email": lambda countries: (EMAIL,),
    "phone": lambda countries: (phone_rule(countries),),
    "card": lambda countries: CARDS,
    "iban": lambda countries: (IBAN,),
    "ip": lambda countries: (IP,),
    "national_id": national_id_rules,
}


@dataclass(frozen=True, eq=False, repr=False)
class PersonalData(HitConstraint):
    """The text has no personal data of these kinds in it. Numbers with check digits count only if these are right.

    Parameters
    ----------
    kinds
        - ``"email"``: addresses of electronic mail.
        - ``"card"``: payment cards, by length, grouping and the Luhn check.
        - ``"ip"``: IPv4 and IPv6 addresses of machines, not of loopback or groups. A version number of four parts
          counts, too.
        - ``"iban"``: bank accounts, by country and check digits. Requires the extra ``guardwrap[pii]``.
        - ``"phone"``: phone numbers that the numbering plan of their country has: with ``+`` and a country code, or as
          they are dialed within ``countries``. Requires the extra ``guardwrap[pii]``.
        - ``"national_id"``: numbers of persons in ``countries``: CPF in ``"br"``, tax id in ``"de"``, DNI and NIE in
          ``"es"``, NIR in ``"fr"``, NHS number in ``"gb"``, Aadhaar and PAN in ``"in"``, codice fiscale in ``"it"``,
          BSN in ``"nl"``, PESEL in ``"pl"``, and SSN and ITIN, in groups, in ``"us"``. Requires the extra
          ``guardwrap[pii]``.
    countries
        ISO codes of the countries whose national numbers are looked for. Each one adds false alarms: in the
        Netherlands every eleventh number of nine digits is a valid BSN.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid, or a kind requires a library that is not installed.

    Notes
    -----
    Names and postal addresses are not found: they have no form of their own. Numbers in letters ("four one one") and
    addresses such as "me at example dot com" are not found either. Digits of all scripts, spaces, dashes, dots, slashes
    and underscores of all kinds, invisible characters, and escapes of JSON, HTML, URLs and program code hide nothing.

    A prefix is VIOLATED as soon as what follows a number or address cannot belong to it.

    Examples
    --------
    >>> PersonalData(["email", "card"]).accepts("Write to ada@example.org.")
    False
    >>> PersonalData(["email", "card"]).accepts("Order 4111 1111 1111 1112")
    True
    """

    kinds: Sequence[PersonalKind]
    countries: Sequence[PersonalCountry] = field(default=(), kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["personal_data"] = field(default="personal_data", kw_only=True)

    def __post_init__(self) -> None:
        for name, choices in (("kinds", get_args(PersonalKind)), ("countries", get_args(PersonalCountry))):
            chosen = getattr(self, name)
            valid = isinstance(chosen, Sequence) and not isinstance(chosen, str)
            require(valid, f"{name} must be a list, not {shown(chosen)}")
            for each in chosen:
                require_choice(each, choices, name)
            object.__setattr__(self, name, tuple(sorted(set(chosen))))  # one canonical form means one digest
        require(len(self.kinds) > 0, f"kinds must have at least one of {', '.join(get_args(PersonalKind))}")
        by_country = [kind for kind in _BY_COUNTRY if kind in self.kinds]
        require(not self.countries or bool(by_country), "countries applies to the kinds phone and national_id only")
        require("national_id" not in self.kinds or bool(self.countries), "national_id needs countries, such as ['us']")
        for kind in self.kinds:
            library = _LIBRARIES.get(kind, "")
            installed = not library or find_spec(library) is not None
            require(installed, f"kinds={kind!r} requires {library}: pip install 'guardwrap[pii]'")
        object.__setattr__(self, "on", read_view(self.on))

    @cached_property
    def rules(self) -> tuple[HitRule, ...]:
        """The rules of the kinds."""
        return tuple(rule for kind in self.kinds for rule in _RULES[kind](tuple(self.countries)))
