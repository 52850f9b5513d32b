"""The ``Code`` constraint: source code that imports, calls and defines only what it should."""

from __future__ import annotations

import ast
import copy
import io
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.rules.parses import (
    MAX_CHARACTERS,
    LineMonitor,
    fault_in_python,
    fault_or_too_deep,
    parse_python,
    python_verdict,
)
from guardwrap.support.time_limits import check_deadline

_LOADERS = frozenset({"builtins", "imp", "importlib", "pkgutil", "runpy", "zipimport"})
"""Modules that import others by a name that may be computed."""

_UNREADABLE = (SyntaxError, MemoryError, RecursionError, ValueError)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, eq=False, repr=False)
class Code(TextConstraint):
    r"""Source code that imports, calls and defines only what it should. It is parsed and never executed.

    Parameters
    ----------
    language
        ``"python"``: a module, by the grammar of the running Python.
    imports
        The modules that may be imported, with their submodules; None for any. An empty list allows none.
    forbid_imports
        Modules that must not be imported, nor their submodules.
    forbid_calls
        Functions that must not be used, by their full names, such as ``"eval"`` and ``"os.system"``. Naming one counts,
        as it can be called under another name later. Names that ``import ... as`` gives are resolved.
    defines
        Signatures of functions, or names of classes, that the code must define at its top level, such as
        ``"def solve(xs: list[int]) -> int"`` and ``"class Stack"``. Each definition of that name must have the same
        parameters with the same defaults, and the annotations that the signature has.
    on
        The view of the text that is judged, such as ``Part(between=["<code>", "</code>"])``.
    name
        Label in reports.

    Notes
    -----
    With ``imports`` or ``forbid_imports``, the name ``__import__`` is forbidden, and so are the modules that import by
    name, such as ``importlib``, unless ``imports`` has them. This finds honest mistakes, and is no sandbox. It does not
    see names that are computed, as in ``getattr(os, "sys" + "tem")`` and ``exec("import os")``; forbid ``getattr``,
    ``eval``, ``exec``, ``compile``, ``globals`` and ``vars`` too. Nor does it see what imported modules do, what
    methods objects have, or whether the functions return what they should. Run untrusted code in a sandbox.

    A text of more than 30 000 characters is rejected. A prefix is VIOLATED at the end of a line: when it breaks a rule,
    or cannot become Python.

    Examples
    --------
    >>> Code("python", imports=["math"]).accepts("import math\nprint(math.pi)")
    True
    >>> Code("python", forbid_calls=["eval"]).accepts("eval('1 + 1')")
    False
    """

    language: Literal["python"] = "python"
    imports: Sequence[str] | None = field(default=None, kw_only=True)
    forbid_imports: Sequence[str] = field(default=(), kw_only=True)
    forbid_calls: Sequence[str] = field(default=(), kw_only=True)
    defines: str | Sequence[str] = field(default=(), kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["code"] = field(default="code", kw_only=True)

    def __post_init__(self) -> None:
        require_choice(self.language, ("python",), "language")
        for name in ("imports", "forbid_imports", "forbid_calls"):
            value = getattr(self, name)
            if value is None and name == "imports":
                continue
            valid = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
            require(valid, f"{name} must be a list of names, not {shown(value)}")
            for each in value:
                is_name = all(part.isidentifier() for part in each.split("."))
                require(is_name, f"{name} has {shown(each)}, which is not a name such as os.path")
            object.__setattr__(self, name, tuple(value))
        signatures = (self.defines,) if isinstance(self.defines, str) else self.defines
        valid = isinstance(signatures, list | tuple) and all(isinstance(each, str) for each in signatures)
        require(valid, f"defines must be a signature or a list of them, not {shown(self.defines)}")
        object.__setattr__(self, "defines", tuple(signatures))
        require(not (self.imports is not None and self.forbid_imports), "use either imports or forbid_imports")
        require(len(self._signatures) == len(self.defines), "defines has two signatures of one name; give one")
        object.__setattr__(self, "on", read_view(self.on))

    @cached_property
    def _signatures(self) -> dict[str, Definition]:
        return {node.name: node for node in map(_signature, self.defines)}

    def holds(self, text: str) -> bool:
        return self._fault(text) is None

    def fault(self, text: str) -> str:
        return self._fault(text) or ""

    def _fault(self, text: str) -> str | None:
        return fault_or_too_deep(lambda: self._found(text))

    def _found(self, text: str) -> str | None:
        if len(text) > MAX_CHARACTERS:
            return f"has more than {MAX_CHARACTERS} characters"
        fault = fault_in_python(text)
        if fault is not None:
            return fault
        module = parse_python(text)
        broken = next(self._faults(module), None)
        if broken is not None:
            return broken
        missing = set(self._signatures) - {node.name for node in module.body if isinstance(node, Definition)}
        return f"does not define {min(missing)}" if missing else None

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Return VIOLATED if complete lines break a rule: what they contain stays in every continuation."""
        if len(prefix) > MAX_CHARACTERS:
            return Verdict.VIOLATED
        lines = prefix[: prefix.rfind("\n") + 1]
        module = _complete_statements(lines)
        try:
            if module is not None and next(self._faults(module), None) is not None:
                return Verdict.VIOLATED
        except RecursionError:
            return Verdict.UNDECIDED
        return python_verdict(prefix)

    def monitor(self) -> Monitor:
        return LineMonitor(self) if self.on == "completion" else super().monitor()

    def _faults(self, module: ast.Module) -> Iterator[str]:
        """Yield what breaks a rule and no later line can mend."""
        for definition in module.body:
            signature = self._signatures.get(definition.name) if isinstance(definition, Definition) else None
            if isinstance(definition, Definition) and signature is not None and not _agree(definition, signature):
                yield f"line {definition.lineno}: {definition.name} has another signature"
        aliases = _aliases(module)
        ruled = self.imports is not None or self.forbid_imports
        for node in ast.walk(module):
            check_deadline()
            imported = _modules(node) if ruled and isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.stmt) and not all(map(self._may_import, imported)):
                yield f"line {node.lineno}: imports a module that is not allowed"
            if isinstance(node, ast.ImportFrom) and self._imports_function(node):
                yield f"line {node.lineno}: imports a function that is not allowed"
            if isinstance(node, ast.Name | ast.Attribute):
                for name in _full_names(node, aliases):
                    if name in self.forbid_calls or (ruled and name == "__import__"):
                        yield f"line {node.lineno}: uses a function that is not allowed"

    def _may_import(self, module: str) -> bool:
        if self.imports is not None:
            return any(_is_within(module, each) for each in self.imports)
        return not any(_is_within(module, each) for each in (*self.forbid_imports, *_LOADERS))

    def _imports_function(self, node: ast.ImportFrom) -> bool:
        """Whether an import brings a forbidden function, or everything from its module."""
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        return any(each in names or f"{each.rpartition('.')[0]}.*" in names for each in self.forbid_calls)


def _signature(text: str) -> Definition:
    """Read a signature, with or without a colon at its end."""
    header = text.strip().removesuffix(":")
    try:
        body = parse_python(f"{header}: pass").body
    except _UNREADABLE:
        body = []
    valid = len(body) == 1 and isinstance(body[0], Definition)
    require(valid, f"defines={shown(text)}: give a signature such as 'def solve(xs: list[int]) -> int'")
    definition = body[0]
    assert isinstance(definition, Definition)
    return definition


def _complete_statements(lines: str) -> ast.Module | None:
    """Return the tree of the most complete lines that are a module; None without one."""
    try:
        return parse_python(lines)
    except _UNREADABLE:
        pass
    starts = [0]
    for line in lines.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    for end in reversed(_logical_ends(lines)):  # only a few fail: decorators, and the first lines of blocks
        check_deadline()
        try:
            return parse_python(lines[: starts[end]])
        except _UNREADABLE:
            continue
    return None


def _logical_ends(lines: str) -> list[int]:
    """Return the numbers of the lines at which a logical line ends, up to what is still open."""
    ends: list[int] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(lines).readline):
            check_deadline()
            if token.type == tokenize.NEWLINE:
                ends.append(token.end[0])
    except (tokenize.TokenError, SyntaxError):
        pass
    return ends


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the modules that a statement imports; relative ones begin with a dot."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = "." * node.level + (node.module or "")
    # What is imported may be a submodule. The module itself is imported as well.
    submodules = [f"{module}.{alias.name}" for alias in node.names]
    return [module] if node.level else [module, *submodules]


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _aliases(module: ast.Module) -> dict[str, set[str]]:
    """Return the full names that each name may have by an import anywhere in the module."""
    names: dict[str, set[str]] = {}
    for node in ast.walk(module):
        check_deadline()
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    names.setdefault(alias.asname, set()).add(alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names.setdefault(alias.asname or alias.name, set()).add(f"{node.module}.{alias.name}")
    return names


def _full_names(node: ast.Name | ast.Attribute, aliases: dict[str, set[str]]) -> list[str]:
    """Return what a name such as ``o.system`` may stand for."""
    parts: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute) and len(parts) < 20:
        parts.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name):
        return []
    rest = "".join(f".{part}" for part in reversed(parts))
    full = {inner.id + rest, *(alias + rest for alias in aliases.get(inner.id, ()))}
    return sorted(full | {name.removeprefix("builtins.") for name in full})


def _agree(node: Definition, signature: Definition) -> bool:
    """Whether a definition has the parameters of a signature, and the annotations that it has."""
    if isinstance(node, ast.ClassDef) or isinstance(signature, ast.ClassDef):
        return type(node) is type(signature)
    ours, theirs = copy.deepcopy(node.args), signature.args
    for argument, expected in zip(_arguments(ours), _arguments(theirs), strict=False):
        if expected.annotation is None:
            argument.annotation = None
    same_returns = signature.returns is None or _dumped(node.returns) == _dumped(signature.returns)
    return type(node) is type(signature) and ast.dump(ours) == ast.dump(theirs) and same_returns


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    return [node for node in ast.iter_child_nodes(arguments) if isinstance(node, ast.arg)]


def _dumped(node: ast.expr | None) -> str | None:
    return None if node is None else ast.dump(node)
