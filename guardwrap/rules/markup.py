"""Markup: XML by expat, and HTML by the algorithm of the standard, without its recovery from errors."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from typing import Any
from xml.parsers import expat

from guardwrap.constraints.verdicts import Verdict
from guardwrap.documents.time_limits import check_deadline


class _Refused(Exception):
    """The text is rejected; the message says why."""


# -------------------------------------------------------------------------------------------------------------- XML


def fault_in_xml(text: str) -> str | None:
    """Return why a text is not a well-formed XML 1.0 document with namespaces; None if it is.

    A DOCTYPE with declarations of its own is rejected, so there are no entities that could expand or name files.
    """
    return _fault_of_xml(text, complete=True)


def xml_verdict(prefix: str) -> Verdict:
    """Return VIOLATED if no continuation is well-formed: without the end, expat judges complete tokens only."""
    return Verdict.UNDECIDED if _fault_of_xml(prefix, complete=False) is None else Verdict.VIOLATED


def _fault_of_xml(text: str, *, complete: bool) -> str | None:
    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartDoctypeDeclHandler = _refuse_declarations
    try:
        parser.Parse(text, complete)
    except expat.ExpatError as error:
        return f"line {error.lineno}: {expat.ErrorString(error.code)}"
    except _Refused as refused:
        return str(refused)
    except ValueError:
        return "has half of a surrogate pair"
    return None


def _refuse_declarations(name: str, system_id: str | None, public_id: str | None, has_declarations: int) -> None:
    if has_declarations:
        raise _Refused("has a DOCTYPE with declarations")


# ------------------------------------------------------------------------------------------------------------- HTML

_MAX_OPEN = 500  # elements that are open at once; the algorithm takes quadratic time in their number
_MAX_ATTRIBUTES = 500  # of one element; each is compared with those before it
_HARMLESS = frozenset({"expected-named-entity"})
"""Errors that are ignored: the library also reports ``&`` in addresses, where the standard allows it."""


def fault_in_html(text: str) -> str | None:
    """Return the first parse error of HTML; None without one.

    A text that begins with ``<!doctype`` is a document. Any other is a fragment, the contents of a ``div``.
    """
    if not text.strip():
        return "is empty"
    parser = _html_parser()()
    whole = text.lstrip()[:9].lower() == "<!doctype"
    # A short string would be opened as a file if one of that name exists; a stream never is.
    stream = io.StringIO(text, newline="")
    try:
        parser.parse(stream) if whole else parser.parse_fragment(stream)
    except _Refused as refused:
        return str(refused)
    return None


@cache
def _html_parser() -> Any:
    """Return tinyhtml5's parser as a class that stops at the first error, at deep nesting and at the time limit."""
    from tinyhtml5.parser import HTMLParser, HTMLTokenizer

    class WatchedTokenizer(HTMLTokenizer):
        def __iter__(self) -> Iterator[Any]:
            for token in super().__iter__():
                check_deadline()
                if len(self.parser.tree.open_elements) > _MAX_OPEN:
                    raise _Refused(f"has more than {_MAX_OPEN} elements open at once")
                yield token

        def attribute_name_state(self) -> Any:
            if len(self.current_token["data"]) > _MAX_ATTRIBUTES:
                raise _Refused(f"has an element with more than {_MAX_ATTRIBUTES} attributes")
            return super().attribute_name_state()

    class StrictParser(HTMLParser):
        def reset(self) -> None:
            self.tokenizer.__class__ = WatchedTokenizer  # the library has no parameter for it
            super().reset()

        def parse_error(self, errorcode: str, datavars: Any = None) -> None:
            if errorcode not in _HARMLESS:
                line, _ = self.tokenizer.stream.position()
                raise _Refused(f"line {line}: {errorcode}")

    return StrictParser
