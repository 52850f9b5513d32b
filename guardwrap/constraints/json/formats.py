"""The formats of JSON Schema draft 2020-12: whether a string is a date, a URI and so on.

The checkers of ``jsonschema`` are not used. Their parsers cannot be interrupted (half a second for an IRI of 1000
characters), and they accept a URI with a line break after it, and ``@`` as an e-mail address. Here ``regex`` runs all
expressions, with a timeout, and possessive quantifiers keep their time linear.
"""

from __future__ import annotations

import ipaddress
from calendar import monthrange
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import idna
import regex

from guardwrap.constraints.json.ecma_patterns import is_expression
from guardwrap.support.time_limits import check_deadline, within

_HEX = "[0-9A-Fa-f]"
_PERCENT = f"%{_HEX}{{2}}"
_UNRESERVED, _DELIMITERS = r"A-Za-z0-9\-._~", "!$&'()*+,;="
# RFC 3987: ucschar and iprivate.
_UCS = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + "".join(
    f"{chr(plane)}-{chr(plane + 0xFFFD)}" for plane in range(0x10000, 0xE0000, 0x10000)
)
_UCS += "\U000e1000-\U000efffd"
_PRIVATE = "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"


@cache
def _compiled(expression: str) -> Any:
    return regex.compile(expression, regex.VERSION0, cache_pattern=False)


def _match(expression: str, text: str) -> Any:
    return within(_compiled(expression).fullmatch, text)


def _matches(expression: str, text: str) -> bool:
    return _match(expression, text) is not None


# -------------------------------------------------------------------------------------- RFC 3339: dates and durations

_DATE = "([0-9]{4})-(0[1-9]|1[0-2])-([0-9]{2})"
_TIME = r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9]|60)(?:\.[0-9]++)?(?:[Zz]|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"


def _date(text: str) -> bool:
    match = _match(_DATE, text)
    return match is not None and 1 <= int(match[3]) <= monthrange(int(match[1]), int(match[2]))[1]


def _time(text: str) -> bool:
    match = _match(_TIME, text)
    if match is None or match[3] != "60":
        return match is not None
    minutes = int(match[1]) * 60 + int(match[2])
    if match[4]:
        minutes -= int(match[4] + "1") * (int(match[5]) * 60 + int(match[6]))
    return minutes % 1440 == 1439  # a leap second is the last second of a day in UTC


def _date_time(text: str) -> bool:
    return text[10:11] in ("T", "t") and _date(text[:10]) and _time(text[11:])


def _units(units: str) -> str:
    """Return an expression for amounts of units, e.g. years, months and days. It may begin and end with any unit.

    As in RFC 3339, no unit between the first and the last may be left out.
    """
    following = ""
    alternatives = []
    for unit in reversed(units):
        following = f"[0-9]++{unit}(?:{following})?" if following else f"[0-9]++{unit}"
        alternatives.append(following)
    return f"(?:{'|'.join(alternatives)})"


_DURATION = f"P(?:{_units('YMD')}(?:T{_units('HMS')})?|T{_units('HMS')}|[0-9]++W)"

# ---------------------------------------------------------------------------------------------------- hosts and e-mail

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*+"
_LONGEST_HOSTNAME = 253
_LONGEST_LOCAL_PART = 64


def _ipv6(text: str) -> bool:
    if not _matches(r"[0-9A-Fa-f:.]{2,45}", text):
        return False
    try:
        return bool(ipaddress.IPv6Address(text))
    except ValueError:
        return False


def _hostname(text: str) -> bool:
    if len(text) > _LONGEST_HOSTNAME or not _matches(_HOSTNAME, text):
        return False
    return "xn--" not in text.lower() or _idn_hostname(text)


def _idn_hostname(text: str) -> bool:
    if len(text) > _LONGEST_HOSTNAME:
        return False
    try:
        return bool(idna.encode(text))
    except UnicodeError:  # the base class of IDNAError
        return False


def _email(text: str, *, others: str, is_host: Callable[[str], bool]) -> bool:
    """Return whether a text is an address of RFC 5321, or of RFC 6531 if other characters are allowed."""
    local, at, domain = text.rpartition("@")
    atom = rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~\-{others}]++"
    quoted = rf'"(?:[ !#-\[\]-~{others}]|\\[ -~])*+"'
    if not at or len(local) > _LONGEST_LOCAL_PART or not _matches(rf"{atom}(?:\.{atom})*+|{quoted}", local):
        return False
    if domain.startswith("[") and domain.endswith("]"):
        literal = domain[1:-1]
        return _ipv6(literal[5:]) if literal[:5].lower() == "ipv6:" else _matches(_IPV4, literal)
    return is_host(domain)


# ------------------------------------------------------------------------------- RFC 3986, 3987 and 6570: URIs and IRIs


@cache
def _reference(*, ucs: str = "", private: str = "", relative: bool) -> str:
    def characters(more: str) -> str:
        return f"(?:[{_UNRESERVED}{_DELIMITERS}{more}{ucs}]|{_PERCENT})"

    segment = characters(":@")
    literal = rf"\[(?:(?P<six>[0-9A-Fa-f:.]++)|[vV]{_HEX}++\.[{_UNRESERVED}{_DELIMITERS}:]++)\]"
    authority = f"(?:{characters(':')}*+@)?+(?:{literal}|{characters('')}*+)(?::[0-9]*+)?+"
    segments = f"(?:/{segment}*+)*+"
    rest = rf"(?:\?{characters(':@/?' + private)}*+)?+(?:\#{characters(':@/?')}*+)?+"

    def hierarchy(first: str) -> str:
        return f"(?://{authority}{segments}|/(?:{segment}++{segments})?+|{first}++{segments}|)"

    uri = rf"[A-Za-z][A-Za-z0-9+.\-]*+:{hierarchy(segment)}{rest}"
    return f"{uri}|{hierarchy(characters('@'))}{rest}" if relative else uri


def _uri(text: str, **kind: Any) -> bool:
    match = _match(_reference(**kind), text)
    return match is not None and (match["six"] is None or _ipv6(match["six"]))


_NAME = rf"(?:[A-Za-z0-9_]|{_PERCENT})++(?:\.(?:[A-Za-z0-9_]|{_PERCENT})++)*+"
_VARIABLE = rf"{_NAME}(?::[1-9][0-9]{{0,3}}|\*)?+"
_TEMPLATE = (
    rf"(?:[!#$&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~{_UCS}{_PRIVATE}]|{_PERCENT}"
    rf"|\{{[+#./;?&=,!@|]?+{_VARIABLE}(?:,{_VARIABLE})*+\}})*+"
)

# -------------------------------------------------------------------------------------------------- pointers and others

_POINTER = "(?:/(?:[^~/]|~[01])*+)*+"
_LONGEST_EXPRESSION = 20_000  # characters; compiling takes up to 8 µs per character and cannot be interrupted


def _regex(text: str) -> bool:
    return len(text) <= _LONGEST_EXPRESSION and is_expression(text)


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date": _date,
    "date-time": _date_time,
    "duration": partial(_matches, _DURATION),
    "email": partial(_email, others="", is_host=_hostname),
    "hostname": _hostname,
    "idn-email": partial(_email, others="\x80-\U0010ffff", is_host=_idn_hostname),
    "idn-hostname": _idn_hostname,
    "ipv4": partial(_matches, _IPV4),
    "ipv6": _ipv6,
    "iri": partial(_uri, ucs=_UCS, private=_PRIVATE, relative=False),
    "iri-reference": partial(_uri, ucs=_UCS, private=_PRIVATE, relative=True),
    "json-pointer": partial(_matches, _POINTER),
    "regex": _regex,
    "relative-json-pointer": partial(_matches, f"(?:0|[1-9][0-9]*+)(?:#|{_POINTER})"),
    "time": _time,
    "uri": partial(_uri, relative=False),
    "uri-reference": partial(_uri, relative=True),
    "uri-template": partial(_matches, _TEMPLATE),
    "uuid": partial(_matches, f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"),
}


def names_format(schema: Any) -> bool:
    """Whether any mapping in a schema has a key ``format`` with one of these formats, even if it is not a keyword."""
    todo = [schema]
    while todo:
        check_deadline()
        part = todo.pop()
        if isinstance(part, dict):
            name = part.get("format")
            if isinstance(name, str) and name in FORMATS:
                return True
            todo += part.values()
        elif isinstance(part, list):
            todo += part
    return False
