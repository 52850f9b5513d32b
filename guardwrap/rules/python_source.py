"""Python source code, as the running interpreter parses it. Nothing is compiled to byte code or executed."""

from __future__ import annotations

import ast
import re
import warnings
from codeop import PyCF_ALLOW_INCOMPLETE_INPUT  # type: ignore[attr-defined]  # not in typeshed

from guardwrap.constraints.verdicts import Verdict

_NAME = "<checked text>"
"""The file name that the parser sees. It is not the name of any module, so a warnings filter can select it."""

_SILENT = ("ignore", None, Warning, re.compile(re.escape(_NAME)), 0)


def fault_in_python(text: str) -> str | None:
    """Return the first syntax error with its line; None if the text is a module.

    Python's grammar alone decides: ``return`` outside a function is a later error of the compiler, so it is accepted.
    """
    try:
        parse_python(text)
    except SyntaxError as error:
        return f"line {error.lineno or 1}: {error.msg}"
    except MemoryError:  # how the parser reports a text that is nested too deeply
        return "is nested too deeply"
    except ValueError:  # a null character, or half of a surrogate pair
        return "has a character that Python source cannot contain"
    return None


def python_verdict(prefix: str) -> Verdict:
    """Return VIOLATED if the complete lines of a prefix cannot begin a module.

    The parser reports incomplete input if its tokenizer reached the end, also within a string or a bracket. If it fails
    before, it has read tokens of complete lines only. They are the same in every continuation, so it fails there too.
    The last line is left out, because its last token may still change.
    """
    lines = prefix[: prefix.rfind("\n") + 1]
    if not lines:
        return Verdict.UNDECIDED
    try:
        parse_python(lines, PyCF_ALLOW_INCOMPLETE_INPUT)
    except SyntaxError as error:
        # Some releases report a string or a bracket that is still open as an error of its own, even after another one.
        if "incomplete input" in str(error.msg):
            return Verdict.UNDECIDED
        if any(words in str(error.msg) for words in ("unterminated", "never closed", "EOF")):
            before = lines.split("\n")[: (error.lineno or 1) - 1]
            return python_verdict("\n".join([*before, ""])) if before else Verdict.UNDECIDED
        return Verdict.VIOLATED
    except (MemoryError, RecursionError, ValueError):
        return Verdict.UNDECIDED
    return Verdict.UNDECIDED


def parse_python(text: str, flags: int = 0) -> ast.Module:
    """Return the syntax tree of a module."""
    # The parser warns of escapes such as "\d", and the warning would print the text. ``catch_warnings`` is not safe in
    # threads, so a filter for this file name stays in front of the others.
    if warnings.filters[:1] != [_SILENT]:
        warnings.filterwarnings("ignore", module=_SILENT[3].pattern)
    tree: ast.Module = compile(text, _NAME, "exec", ast.PyCF_ONLY_AST | flags, dont_inherit=True)
    return tree
