"""The ``Secrets`` constraint: no passwords for machines, such as API keys, access tokens and private keys."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import regex

from guardwrap.constraints.field_checks import require_booleans
from guardwrap.constraints.views import View, read_view
from guardwrap.rules.hits import HitConstraint, HitRule
from guardwrap.support.time_limits import within

# The forms are those that the issuers document. Each has a prefix of its own, so a text about keys is no hit.
_FORMS = {
    "AWS access key": r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}",
    "GitHub token": r"gh[pousr]_[A-Za-z0-9]{36,251}|github_pat_[A-Za-z0-9_]{82}",
    "GitLab token": r"gl(?:pat|dt|rt|ptt|cbt|soat|ft|imt|agent)-[A-Za-z0-9_\-]{20,64}",
    "OpenAI key": r"sk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_\-]{20,100}T3BlbkFJ[A-Za-z0-9_\-]{20,100}",
    "Anthropic key": r"sk-ant-[a-z]+[0-9]{2}-[A-Za-z0-9_\-]{80,120}",
    "Slack token": r"xox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9\-]{10,250}",
    "Slack webhook": r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9+/]{43,56}",
    "Stripe key": r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{10,99}",
    "Google API key": r"AIza[A-Za-z0-9_\-]{35}",
    "Google OAuth secret": r"GOCSPX-[A-Za-z0-9_\-]{28}",
    "SendGrid key": r"SG\.[A-Za-z0-9_\-]{22}\.[A-Za-z0-9_\-]{43}",
    "Hugging Face token": r"hf_[A-Za-z]{34}",
    "Azure storage key": r"AccountKey=[A-Za-z0-9+/]{86}==",
    "Databricks token": r"dapi[0-9a-f]{32}(?:-[0-9])?",
    "DigitalOcean token": r"do[opr]_v1_[0-9a-f]{64}",
    "Shopify token": r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    "Twilio key": r"(?:AC|SK)[0-9a-f]{32}",
    "npm token": r"npm_[A-Za-z0-9]{36}",
    "PyPI token": r"pypi-AgEIcHlwaS5vcmc[A-Za-z0-9_\-]{70,250}",
    "JSON Web Token": r"eyJ[A-Za-z0-9_\-]{10,4000}\.eyJ[A-Za-z0-9_\-]{10,4000}\.[A-Za-z0-9_\-]{10,2000}",
}
_RUN = regex.compile(r"[A-Za-z0-9_\-./+=%\\]++")
_PRIVATE_KEY = regex.compile(
    r"-----BEGIN (?:(?:RSA|DSA|EC|OPENSSH|ENCRYPTED|PGP|SSH2 ENCRYPTED) )?PRIVATE KEY(?: BLOCK)?-----"
)


_SHORTEST = 14
_NAMES = {f"form{number}": label for number, label in enumerate(_FORMS)}
_ANY_FORM = "|".join(f"(?P<{name}>{_FORMS[label]})" for name, label in _NAMES.items())
# A letter or digit before a key makes it part of a longer word, unless it ends an escape: "%3D", "\\n".
_ESCAPE = r"%[0-9A-Fa-f]{2}|\\[abfnrtv0]|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}"
_FORM, _FORM_BEHIND_ESCAPE = (
    regex.compile(f"(?:{begin})(?:{_ANY_FORM})(?![A-Za-z0-9])")
    for begin in ("(?<![A-Za-z0-9])", f"(?<![A-Za-z0-9])|(?<={_ESCAPE})")
)


def _find_form(run: str) -> str | None:
    form = _FORM_BEHIND_ESCAPE if "%" in run or "\\" in run else _FORM
    match = within(form.search, run) if len(run) >= _SHORTEST else None
    return None if match is None else _NAMES[match.lastgroup]


_RULES = (HitRule(_PRIVATE_KEY, lambda run: "private key", tail=0), HitRule(_RUN, _find_form))

# Thresholds of detect-secrets: bits per character of Base64 and of hexadecimal digits.
_LEAST_BITS = 4.5
_LEAST_BITS_HEX = 3.0
_LEAST_LENGTH = 24
_PIECE = regex.compile(rf"[A-Za-z0-9+/_\-]{{{_LEAST_LENGTH},}}+")
_HEX = regex.compile(r"[0-9a-fA-F]+")


def _find_random(run: str) -> str | None:
    """Look for a long piece with digits in a run, of which the characters occur about equally often."""
    for piece in within(_PIECE.findall, run):
        least = _LEAST_BITS_HEX if _HEX.fullmatch(piece) else _LEAST_BITS
        if any(map(str.isdigit, piece)) and any(map(str.isalpha, piece)) and _bits(piece) >= least:
            return "random string"
    return None


def _bits(piece: str) -> float:
    """Return Shannon's entropy of the characters, in bits per character."""
    return -sum(n / len(piece) * math.log2(n / len(piece)) for n in Counter(piece).values())


_RANDOM = HitRule(_RUN, _find_random)


@dataclass(frozen=True, eq=False, repr=False)
class Secrets(HitConstraint):
    """The text has no secret in it: no API key, access token or private key of a well-known form.

    It knows the forms of AWS, GitHub, GitLab, OpenAI, Anthropic, Slack, Stripe, Google, SendGrid, Hugging Face, Azure
    storage, Databricks, DigitalOcean, Shopify, Twilio, npm and PyPI, JSON Web Tokens, and private keys in PEM. It does
    not know whether a key is valid, and misses passwords that people choose. Invisible characters, full-width letters,
    and escapes of JSON, HTML, URLs and program code hide no key.

    Parameters
    ----------
    random_strings
        Whether long strings that look random are secrets, too: at least 24 letters and digits with an entropy of at
        least 4.5 bits per character, or 3 if they are hexadecimal. Checksums and file names are often such strings.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid.

    Notes
    -----
    A prefix is VIOLATED as soon as a character follows that cannot belong to the key, and at once for private keys.

    Examples
    --------
    >>> Secrets().accepts("Set AWS_ACCESS_KEY_ID to your key.")
    True
    >>> Secrets().accepts("key = AKIAIOSFODNN7EXAMPLE")
    False
    """

    random_strings: bool = field(default=False, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["secrets"] = field(default="secrets", kw_only=True)

    article = "a "
    shown = 12  # enough to find it, too few to use it

    def __post_init__(self) -> None:
        require_booleans(self, "random_strings")
        object.__setattr__(self, "on", read_view(self.on))

    @property
    def rules(self) -> tuple[HitRule, ...]:
        """The rules."""
        return (*_RULES, _RANDOM) if self.random_strings else _RULES
