r"""ECMA-262 regular expressions, translated to the ``regex`` module's syntax.

In JSON Schema, ``pattern`` and ``patternProperties`` are ECMA-262 expressions with the flag ``u``: characters are code
points, ``\d``, ``\w`` and ``\b`` are ASCII, and ``$`` does not match before a final newline. Some syntax is only valid
without the flag: needless backslashes, and ``{``, ``}`` and ``]`` as characters. It is accepted if it is unambiguous.
Everything else is rejected with an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, NoReturn

import regex

from guardwrap.constraints.regex_analysis import compile_pattern
from guardwrap.errors import ConstraintError, quoted
from guardwrap.support.time_limits import check_deadline

_LAST = 0x10FFFF
_Ranges = tuple[tuple[int, int], ...]


def _words(text: str, separator: str | None = None) -> list[str]:
    return text.split(separator)


class Untranslatable(Exception):
    """An expression is invalid or cannot be translated."""

    def __init__(self, reason: str, *, valid: bool = False) -> None:
        super().__init__(reason)
        self.valid = valid


def escape_character(code: int) -> str:
    """Return a character as an expression, for use outside sets."""
    char = chr(code)
    if 0xD800 <= code < 0xE000:
        raise Untranslatable("it has half of a surrogate pair; write the whole character", valid=True)
    return char if code >= 0x80 or char.isalnum() or char in " _,:;<>=@!\"'%/`" else f"\\x{code:02x}"


def _in_set(code: int) -> str:
    """Return a character for use in a set. Punctuation is escaped, because ``regex`` reads pairs such as ``&&``."""
    if code < 0x80:
        return chr(code) if chr(code).isalnum() else f"\\x{code:02x}"
    return f"\\U{code:08x}"


def _spelled(ranges: _Ranges) -> str:
    return "".join(_in_set(first) if first == last else f"{_in_set(first)}-{_in_set(last)}" for first, last in ranges)


def _others(ranges: _Ranges) -> _Ranges:
    """Return the code points outside sorted ranges."""
    starts = (0, *(last + 1 for _, last in ranges))
    ends = (*(first - 1 for first, _ in ranges), _LAST)
    return tuple((start, end) for start, end in zip(starts, ends, strict=True) if start <= end)


_EVERY: _Ranges = ((0, _LAST),)
_ASCII: _Ranges = ((0, 0x7F),)
_DIGITS: _Ranges = ((0x30, 0x39),)
_WORD: _Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: _Ranges = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
_CLASSES = {"d": _spelled(_DIGITS), "w": _spelled(_WORD), "s": _spelled(_SPACE)}
_CLASSES |= {"D": _spelled(_others(_DIGITS)), "W": _spelled(_others(_WORD)), "S": _spelled(_others(_SPACE))}
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D, "0": 0}
ANY, NONE = f"[{_spelled(_EVERY)}]", f"[^{_spelled(_EVERY)}]"
NOT_A_LINE_END = r"[^\n\r\u2028\u2029]"
_LETTER = f"[{_CLASSES['w']}]"
BOUNDARY = f"(?:(?<={_LETTER})(?!{_LETTER})|(?<!{_LETTER})(?={_LETTER}))"
NO_BOUNDARY = f"(?:(?<={_LETTER})(?={_LETTER})|(?<!{_LETTER})(?!{_LETTER}))"

_INSTEAD = {"A": "write ^", "Z": "write $", "z": "write $", "h": r"write [ \t]", "Q": "escape each character"}
_INCOMPLETE = {
    "u": r"write \uHHHH or \u{H...}",
    "x": r"write \xHH",
    "c": r"write \c and a letter",
    "k": r"write \k<name>",
    "p": r"write \p{...}",
    "P": r"write \P{...}",
    "0": r"write \x and two hexadecimal digits",
}

# The names in ECMA-262: general categories (short name: long names), binary properties, and the keys for scripts.
_CATEGORIES = dict(
    pair.split(":")
    for pair in _words(
        "C:Other,Cc:Control cntrl,Cf:Format,Cn:Unassigned,Co:Private_Use,Cs:Surrogate,L:Letter,LC:Cased_Letter,"
        "Ll:Lowercase_Letter,Lm:Modifier_Letter,Lo:Other_Letter,Lt:Titlecase_Letter,Lu:Uppercase_Letter,"
        "M:Mark Combining_Mark,Mc:Spacing_Mark,Me:Enclosing_Mark,Mn:Nonspacing_Mark,N:Number,"
        "Nd:Decimal_Number digit,Nl:Letter_Number,No:Other_Number,P:Punctuation punct,Pc:Connector_Punctuation,"
        "Pd:Dash_Punctuation,Pe:Close_Punctuation,Pf:Final_Punctuation,Pi:Initial_Punctuation,"
        "Po:Other_Punctuation,Ps:Open_Punctuation,S:Symbol,Sc:Currency_Symbol,Sk:Modifier_Symbol,Sm:Math_Symbol,"
        "So:Other_Symbol,Z:Separator,Zl:Line_Separator,Zp:Paragraph_Separator,Zs:Space_Separator",
        ",",
    )
)
_BINARY = _words(
    "ASCII_Hex_Digit AHex Alphabetic Alpha Bidi_Control Bidi_C Case_Ignorable CI Cased Changes_When_Casefolded CWCF "
    "Changes_When_Casemapped CWCM Changes_When_Lowercased CWL Changes_When_Titlecased CWT Changes_When_Uppercased CWU "
    "Dash Default_Ignorable_Code_Point DI Deprecated Dep Diacritic Dia Emoji Emoji_Component Emoji_Modifier "
    "Emoji_Modifier_Base Emoji_Presentation Extended_Pictographic Extender Ext Grapheme_Base Gr_Base Grapheme_Extend "
    "Gr_Ext Hex_Digit Hex IDS_Binary_Operator IDSB ID_Continue IDC ID_Start IDS Ideographic Ideo Join_Control Join_C "
    "Logical_Order_Exception LOE Lowercase Lower Math Noncharacter_Code_Point NChar Pattern_Syntax Pat_Syn "
    "Pattern_White_Space Pat_WS Quotation_Mark QMark Radical Regional_Indicator RI Sentence_Terminal STerm Soft_Dotted "
    "SD Terminal_Punctuation Term Unified_Ideograph UIdeo Uppercase Upper Variation_Selector VS White_Space space "
    "XID_Continue XIDC XID_Start XIDS"
)
_SCRIPTS = {"Script": "sc", "sc": "sc", "Script_Extensions": "scx", "scx": "scx"}

TOKEN = re.compile(
    r"\\(?:u\{(?P<wide>[0-9A-Fa-f]+)\}|u(?P<four>[0-9A-Fa-f]{4})|x(?P<two>[0-9A-Fa-f]{2})|c(?P<control>[A-Za-z])"
    r"|(?P<property>[pP]\{[^}]*\})|k<(?P<back>[^>]*)>|(?P<number>[1-9][0-9]*)|(?P<single>0(?![0-9])|[^0-9uxckpP]))"
    r"|(?P<open>\((?:\?(?:[:=!]|<[=!]|P?<(?P<name>[^>=!][^>]*)>|(?P<special>.?)))?)|(?P<close>\))"
    r"|(?P<set>\[\^?)|(?P<repeat>[*+?]\??|\{(?P<least>[0-9]+)(?:,(?P<most>[0-9]*))?\}\??)|(?P<other>.)",
    re.DOTALL,
)
"""One token of an expression, outside sets. A backslash in the group ``other`` does not begin a valid escape."""
_LOW = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")


def no_escape(spelling: str, i: int) -> NoReturn:
    """Raise Untranslatable for a backslash that does not begin a valid escape."""
    letter = spelling[i + 1 : i + 2]
    if not letter:
        raise Untranslatable("it ends with a backslash")
    raise Untranslatable(f"\\{letter} at position {i} is incomplete; {_INCOMPLETE[letter]}")


def escape(token: re.Match[str]) -> tuple[int | str, int]:
    """Return the meaning of an escape, and the position of its end.

    The meaning is a code point, or a string with the contents of a set.
    """
    end = token.end()
    if digits := token["wide"] or token["four"] or token["two"]:
        code = int(digits, 16) if len(digits) < 20 else _LAST + 1
        if token["four"] and 0xD800 <= code < 0xDC00 and (low := _LOW.match(token.string, end)):
            return 0x10000 + ((code & 0x3FF) << 10) + (int(low[1], 16) & 0x3FF), low.end()
        if code > _LAST:
            raise Untranslatable(f"{token[0][:20]} is beyond the last character, U+10FFFF")
        return code, end
    if token["control"]:
        return ord(token["control"]) % 32, end
    if token["property"]:
        return _property(token["property"]), end
    single = token["single"]
    if single in _CLASSES:
        return _CLASSES[single], end
    if single in _CONTROLS:
        return _CONTROLS[single], end
    if single.isascii() and single.isalpha():
        way_out = _INSTEAD.get(single, f"to match the letter, write {single}")
        raise Untranslatable(f"\\{single} at position {token.start()} is not an escape of ECMA-262; {way_out}")
    return ord(single), end


@cache
def _property(spelling: str) -> str:
    """Return a Unicode property (``p{...}``) or its complement (``P{...}``) as the contents of a set."""
    has, name = spelling[0], spelling[2:-1]
    if name == "Any":
        return _spelled(_EVERY) if has == "p" else ""
    if name == "ASCII":
        return _spelled(_ASCII if has == "p" else _others(_ASCII))
    if name == "Assigned":
        return f"\\{'P' if has == 'p' else 'p'}{{Cn}}"
    key, equals, value = name.partition("=")
    category = value if key in ("General_Category", "gc") else name
    for short, names in _CATEGORIES.items():
        if category == short or category in names.split():
            return f"\\{has}{{{short}}}"
    known = f"{_SCRIPTS[key]}={value}" if key in _SCRIPTS else name if name in _BINARY and not equals else ""
    if re.fullmatch(r"(?:scx?=)?[A-Za-z_]+", known):
        try:
            regex.compile(f"\\p{{{known}}}", regex.VERSION0, cache_pattern=False)
        except regex.error:
            pass
        else:
            return f"\\{has}{{{known}}}"
    raise Untranslatable(f"\\{spelling[:60]} names an unknown Unicode property", valid=True)


def read_set(spelling: str, i: int, *, negated: bool) -> tuple[str, int]:
    """Translate a set, and return the translation and the position of its end. ``i`` is the position after ``[``."""
    parts = list(_parts(spelling, i))
    end = parts.pop()[1]
    items = [item for item, _ in parts]
    contents: list[str] = []
    k = 0
    while k < len(items):
        if k + 2 < len(items) and items[k + 1] == _HYPHEN:
            first, last = _member(items[k]), _member(items[k + 2])
            if isinstance(first, int) and isinstance(last, int):
                if first > last:
                    raise Untranslatable(f"a range in the set that ends at position {end - 1} is out of order")
                contents.append(f"{_in_set(first)}-{_in_set(last)}")
            else:  # next to a class, as in [\w-.], the hyphen is a character
                contents += [each if isinstance(each, str) else _in_set(each) for each in (first, ord("-"), last)]
            k += 3
        else:
            item = _member(items[k])
            contents.append(item if isinstance(item, str) else _in_set(item))
            k += 1
    inner = "".join(contents)
    if not inner:
        return ANY if negated else NONE, end
    return f"[{'^' if negated else ''}{inner}]", end


_HYPHEN = -1


def _member(item: int | str) -> int | str:
    """Return a member of a set: a hyphen that is between no two characters is itself one."""
    return ord("-") if item == _HYPHEN else item


def _parts(spelling: str, i: int) -> Iterator[tuple[int | str, int]]:
    """Yield the members of a set, each with the position of its end: code points, and classes as strings.

    The last one, an empty string, stands for the closing bracket.
    """
    start = i - 1
    while (char := spelling[i : i + 1]) != "]":
        check_deadline()
        if not char:
            raise Untranslatable(f"the set at position {start} is not closed; to match a bracket, write \\[")
        if char == "\\":
            token = TOKEN.match(spelling, i)
            if token is None or token["other"]:
                no_escape(spelling, i)
            if token["number"] or token["back"] is not None or token["single"] == "B":
                raise Untranslatable(f"{token[0][:20]} at position {i} is not allowed in a set")
            item, i = (0x08, token.end()) if token["single"] == "b" else escape(token)
        else:
            item, i = _HYPHEN if char == "-" else ord(char), i + 1
        if isinstance(item, int) and item != _HYPHEN:
            escape_character(item)
        yield item, i
    yield "", i + 1


# ---------------------------------------------------------------------------------------------------------- expressions


class Expression(str):
    """A regular expression as written in a schema."""

    translated: str  # its translation to the syntax of ``regex``
    compiled: Any  # the compiled translation


def compile_expression(spelling: str) -> Expression:
    """Translate and compile an expression."""
    expression = Expression(spelling)
    expression.translated = translate(spelling)
    expression.compiled = compile_pattern(expression.translated, spelling=spelling)
    return expression


def translate(spelling: str) -> str:
    """Return the translation of an ECMA-262 expression to the syntax of ``regex``, version 0."""
    try:
        return _translated(spelling)
    except Untranslatable as reason:
        raise ConstraintError(
            f"invalid regular expression {quoted(spelling[:80])} (JSON Schema uses ECMA-262): {reason}"
        ) from None


def is_expression(text: str) -> bool:
    """Whether a text is a valid ECMA-262 expression, within the size limits of ``compile_pattern``."""
    try:
        compile_pattern(_translated(text), spelling=text)
    except Untranslatable as reason:
        return reason.valid
    except ConstraintError:
        return False
    return True


class _Group(NamedTuple):
    """An open group: its opening characters, and the number of capturing groups before it."""

    opening: str
    captures: int


@dataclass(slots=True)
class _State:
    """The state of the translation."""

    pieces: list[str] = field(default_factory=list)  # the translation so far
    open: list[_Group] = field(default_factory=list)  # the groups that are open
    closed: set[int] = field(default_factory=set)  # the numbers of the capturing groups that are closed
    # the numbers of groups whose captures may differ between ``regex`` and ECMA-262
    unsafe: list[range] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)  # the numbers of named groups, by name
    # references to groups: the index in ``pieces``, a description for messages, and the number of the group, or its
    # name if it is not defined yet
    back: list[tuple[int, str, int | str]] = field(default_factory=list)
    captures: int = 0  # the number of capturing groups that have begun
    # the capturing groups in the part that a quantifier would repeat; None if a quantifier is not allowed here
    last: range | None = None
    has_empty_set: bool = False  # whether there was a set without characters

    def add(self, piece: str, repeatable: range | None) -> None:
        self.pieces.append(piece)
        self.last = repeatable


_NO_GROUPS = range(0)


def _translated(spelling: str) -> str:
    state, i = _State(), 0
    while i < len(spelling):
        check_deadline()
        token = TOKEN.match(spelling, i)
        assert token is not None  # any character is one
        i = token.end()
        if token["set"]:
            piece, i = read_set(spelling, i, negated=token["set"] == "[^")
            state.has_empty_set |= piece in (ANY, NONE)
            state.add(piece, _NO_GROUPS)
        elif token["open"]:
            _open(state, token)
        elif token["close"]:
            _close(state)
        elif token["repeat"]:
            _repeat(state, token)
        elif token["back"] is not None or token["number"]:
            _refer(state, token)
        elif token["other"]:
            _character(state, token)
        elif token["single"] in ("b", "B"):
            state.add(BOUNDARY if token["single"] == "b" else NO_BOUNDARY, None)
        else:
            meant, i = escape(token)
            state.add(
                escape_character(meant) if isinstance(meant, int) else f"[{meant}]" if meant else NONE, _NO_GROUPS
            )
    if state.open:
        raise Untranslatable("a group is not closed; to match a parenthesis, write \\(")
    unsafe = _union(state.unsafe) if state.back else set()
    for place, shown, target in state.back:
        number = state.names.get(target, 0) if isinstance(target, str) else target
        if not 0 < number <= state.captures:
            raise Untranslatable(f"{shown} refers to a group that does not exist")
        if number in unsafe or isinstance(target, str):
            raise Untranslatable(f"{shown} {_UNSAFE}", valid=True)
        # In ECMA-262, a reference to a group that did not take part in the match matches the empty string.
        state.pieces[place] = f"(?({number})\\{number})"
    return "".join(state.pieces)


_UNSAFE = (
    "refers to a group that is repeated, or in a look-around, or not closed before it, which cannot be translated; "
    "write the expression without this reference"
)


def _union(ranges: list[range]) -> set[int]:
    """Return the numbers in any of the ranges, in linear time: groups may be nested thousands of levels deep."""
    numbers: set[int] = set()
    end = 0
    for each in sorted(ranges, key=lambda each: each.start):
        check_deadline()
        numbers.update(range(max(each.start, end), each.stop))
        end = max(end, each.stop)
    return numbers


def _open(state: _State, token: re.Match[str]) -> None:
    opening, name = token["open"], token["name"]
    if token["special"] is not None:
        where = f"{opening!r} at position {token.start()}"
        if token["special"] in tuple("ims-"):
            raise Untranslatable(
                f"{where}: inline flags are not supported; write letters in both cases, as [aA]", valid=True
            )
        known = "(...), (?:...), (?<name>...), (?=...), (?!...), (?<=...) and (?<!...)"
        raise Untranslatable(f"{where} does not begin a group; ECMA-262 has {known}")
    if name is not None:
        if not name.replace("$", "_").isidentifier():
            raise Untranslatable(f"{name[:40]!r} is not a valid group name; use letters, digits and _")
        if name in state.names:
            raise Untranslatable(f"two groups have the name {name[:40]!r}; rename one of them", valid=True)
        state.names[name] = state.captures + 1
        opening = "("
    state.open.append(_Group(opening, state.captures))
    state.captures += opening == "("
    state.add(opening, None)


def _close(state: _State) -> None:
    if not state.open:
        raise Untranslatable("unmatched ')'; to match a parenthesis, write \\)")
    group = state.open.pop()
    inner = range(group.captures + 1, state.captures + 1)
    if group.opening == "(":
        state.closed.add(group.captures + 1)
    is_group = group.opening in ("(", "(?:")
    if not is_group and group.opening != "(?=":
        state.unsafe.append(inner)
    state.add(")", inner if is_group else None)


def _repeat(state: _State, token: re.Match[str]) -> None:
    where = f"{token['repeat'][:20]!r} at position {token.start()}"
    if state.last is None:
        raise Untranslatable(f"{where} has nothing to repeat; put one quantifier after a character, a set or a group")
    least, most = (token[name] or "" for name in ("least", "most"))
    if most and (len(most.lstrip("0")), most.lstrip("0")) < (len(least.lstrip("0")), least.lstrip("0")):
        raise Untranslatable(f"{where} has its numbers in the wrong order")
    state.unsafe.append(state.last)
    state.add(token["repeat"], None)


def _refer(state: _State, token: re.Match[str]) -> None:
    digits, name = token["number"], token["back"]
    number = state.names.get(name, 0) if name is not None else int(digits[:9])
    if number not in state.closed:
        state.unsafe.append(range(number, number + 1))
    shown = f"{token[0][:40]} at position {token.start()}"
    state.back.append((len(state.pieces), shown, number or name))
    state.add("", _NO_GROUPS)


_SIGNS = {"|": "|", "^": "^", "$": r"\Z"}


def _character(state: _State, token: re.Match[str]) -> None:
    char, place = token["other"], token.start()
    if char in _SIGNS:
        state.add(_SIGNS[char], None)
    elif char == ".":
        state.add(NOT_A_LINE_END, _NO_GROUPS)
    elif char == "\\":
        no_escape(token.string, place)
    elif char == "{" and re.compile(r"\{,[0-9]+\}").match(token.string, place):
        raise Untranslatable(f"'{{,' at position {place} does not begin a quantifier; write {{0,n}}")
    elif char == "]" and state.has_empty_set:
        raise Untranslatable("a ']' right after '[' or '[^' ends an empty set; to match a ']', write \\]")
    else:
        state.add(escape_character(ord(char)), _NO_GROUPS)
