"""The ``PersonalData`` constraint: no e-mail addresses, phone, card and account numbers, and no ids of persons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Literal, get_args

from guardwrap.constraints.detectors import personal_numbers
from guardwrap.constraints.detectors.hits import HitConstraint, HitRule
from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.views import View, read_view

PersonalKind = Literal["email", "phone", "card", "iban", "ip", "national_id"]
PersonalCountry = Literal["br", "de", "es", "fr", "gb", "in", "it", "nl", "pl", "us"]

_LIBRARIES = {"phone": "phonenumbers", "iban": "stdnum", "national_id": "stdnum"}
_BY_COUNTRY = ("phone", "national_id")
_RULES: dict[str, Callable[[tuple[str, ...]], Iterable[HitRule]]] = {
    "email": lambda countries: (personal_numbers.EMAIL,),
    "phone": lambda countries: (personal_numbers.phone_rule(countries),),
    "card": lambda countries: personal_numbers.CARDS,
    "iban": lambda countries: (personal_numbers.IBAN,),
    "ip": lambda countries: (personal_numbers.IP,),
    "national_id": personal_numbers.national_id_rules,
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
