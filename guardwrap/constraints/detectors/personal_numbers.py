"""How addresses and numbers of persons are recognized: their characters, lengths and check digits."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module

import regex

from guardwrap.constraints.detectors.hits import HitRule
from guardwrap.constraints.kinds.text import luhn
from guardwrap.documents.time_limits import check_deadline, matches, within

__all__ = ["CARD", "EMAIL", "IBAN", "IP", "national_id_rule", "phone_rule"]

# In each run, a separator belongs to it only if it joins two parts, so a run ends at most two characters before what
# shows that it ends.
_NO_SPACE = regex.compile(r"\S++")
_DIGITS = regex.compile(r"(?<!\w)[0-9]++(?!\w)(?:[ \-][0-9]++(?!\w))*+")
_NUMBERS_AND_LETTERS = regex.compile(r"(?<!\w)[A-Za-z0-9]++(?!\w)(?:[ .\-/](?>[A-Za-z0-9]*[0-9])[A-Za-z0-9]*+(?!\w))*+")

_AT = regex.compile(r"(?<=[\p{L}\p{N}_%+\-'])@(?:[\p{L}\p{N}\-]++\.)+(?:xn--[a-z0-9\-]{2,}+|\p{L}{2,}+)")


def _named(name: str, is_hit: Callable[[str], bool]) -> Callable[[str], str | None]:
    return lambda run: name if is_hit(run) else None


EMAIL = HitRule(_NO_SPACE, _named("an e-mail address", lambda run: "@" in run and bool(within(_AT.search, run))))

_CARD_GROUPS = {(4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 6, 5), (4, 6, 4), *((length,) for length in range(13, 20))}
_WIDEST_CARD = 5


def _has_card(run: str) -> bool:
    groups = run.replace("-", " ").split(" ")
    for start in range(len(groups)):
        check_deadline()
        for size in range(1, _WIDEST_CARD + 1):
            window = groups[start : start + size]
            if tuple(map(len, window)) in _CARD_GROUPS and window[0][0] in "23456" and _is_card("".join(window)):
                return True
    return False


def _is_card(digits: str) -> bool:
    return len(set(digits)) > 1 and luhn(digits)


CARD = HitRule(_DIGITS, _named("a card number", _has_card), tail=2)

_IBAN_RUN = regex.compile(r"(?<!\w)[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9])*+")


def _has_iban(run: str) -> bool:
    """Whether a run begins with an IBAN that ends where a group ends: capital words may follow it."""
    iban = import_module("stdnum.iban")
    begun = ""
    for group in run[:64].split(" "):
        begun += group
        if 15 <= len(begun) <= 34 and iban.is_valid(begun):
            return True
    return False


# It begins only where no word character is before it, so an IBAN in the middle of capital words is looked for there.
_IBAN_START = regex.compile(r"(?<!\w)[A-Z]{2}[0-9]{2}")


def _has_iban_anywhere(run: str) -> bool:
    return any(_has_iban(run[start.start() :]) for start in matches(_IBAN_START, run))


IBAN = HitRule(_IBAN_RUN, _named("a bank account", _has_iban_anywhere), tail=2)

_IP_CHARACTERS = regex.compile(r"[0-9A-Za-z_.:\-]++")
_IPV4 = regex.compile(r"(?<![\w.\-])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w\-]|\.[0-9])")


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

# The number of digits bounds the work for a run; no phone number has more.
_PHONE_RUN = regex.compile(r"(?<![\w+])[+(]?[0-9](?:[ .\-/()]{0,2}+[0-9]){6,19}+(?!\w)")
_PHONE_STARTS = regex.compile(r"^|(?<= )[+(0]")
_NO_PHONE = regex.compile(r"[0-9]{1,4}[./\-][0-9]{1,2}[./\-][0-9]{1,4}|[0-9]+\.[0-9]+\Z")  # dates, decimals


def phone_rule(countries: tuple[str, ...]) -> HitRule:
    """Return the rule for phone numbers with a country code, and those that are dialed within some countries."""
    regions = tuple(country.upper() for country in countries)
    return HitRule(_PHONE_RUN, _named("a phone number", partial(_has_phone, regions=regions)), tail=3)


def _has_phone(run: str, regions: tuple[str, ...]) -> bool:
    for start in matches(_PHONE_STARTS, run):
        candidate = run[start.start() :]
        # The last group may be another number: "020 7946 0958 8 times".
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
    "br": {"br.cpf": r"[0-9]{3}\.?[0-9]{3}\.?[0-9]{3}-?[0-9]{2}"},
    "de": {"de.idnr": r"[0-9]{2} ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}"},
    "es": {"es.dni": r"[0-9]{8}[ \-]?[A-Za-z]", "es.nie": r"[XYZxyz][ \-]?[0-9]{7}[ \-]?[A-Za-z]"},
    "fr": {"fr.nir": r"[1-478] ?[0-9]{2} ?[0-9]{2} ?(?:[0-9]{2}|2[AB]) ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}"},
    "gb": {"gb.nhs": r"[0-9]{3}[ \-]?[0-9]{3}[ \-]?[0-9]{4}"},
    "in": {"in_.aadhaar": r"[0-9]{4}[ \-]?[0-9]{4}[ \-]?[0-9]{4}", "in_.pan": r"[A-Z]{5}[0-9]{4}[A-Z]"},
    "it": {"it.codicefiscale": r"[A-Za-z]{6}[0-9A-Za-z]{2}[A-Za-z][0-9A-Za-z]{2}[A-Za-z][0-9A-Za-z]{3}[A-Za-z]"},
    "nl": {"nl.bsn": r"[0-9]{4}\.?[0-9]{2}\.?[0-9]{3}"},
    "pl": {"pl.pesel": r"[0-9]{11}"},
    "us": {"us.ssn": r"[0-9]{3}-[0-9]{2}-[0-9]{4}", "us.itin": r"[0-9]{3}-[0-9]{2}-[0-9]{4}"},
}


def national_id_rule(countries: tuple[str, ...]) -> HitRule:
    """Return the rule for numbers of persons in some countries."""
    checks = [
        (regex.compile(rf"(?<!\w)(?:{form})(?!\w)"), import_module(f"stdnum.{module}").is_valid)
        for country in countries
        for module, form in _IDS[country].items()
    ]
    return HitRule(_NUMBERS_AND_LETTERS, _named("a national id", partial(_has_id, checks=checks)), tail=2)


def _has_id(run: str, checks: list[tuple[regex.Pattern[str], Callable[[str], bool]]]) -> bool:
    return any(is_valid(text) for form, is_valid in checks for text in _texts(form, run))


def _texts(form: regex.Pattern[str], run: str) -> Iterator[str]:
    return (match.group() for match in matches(form, run, overlapped=True))
