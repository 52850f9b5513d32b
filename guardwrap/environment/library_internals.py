"""Private names of other libraries that guardwrap uses, except transformers and torch (``transformers_internals``).

Importing this module imports none of the libraries. A test resolves each name in the installed releases, so that a
name that a release removes is reported, and checks that all private names that are used are listed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.util import find_spec

_OPERATIONS = (
    "ANY",
    "ASSERT",
    "ASSERT_NOT",
    "AT",
    "AT_BEGINNING",
    "AT_BEGINNING_STRING",
    "AT_BOUNDARY",
    "AT_END",
    "AT_END_STRING",
    "AT_NON_BOUNDARY",
    "BRANCH",
    "GROUPREF",
    "IN",
    "LITERAL",
    "MAX_REPEAT",
    "MIN_REPEAT",
    "NOT_LITERAL",
    "SUBPATTERN",
)

USED: tuple[str, ...] = (
    *(f"re._constants.{name}" for name in _OPERATIONS),
    "re._parser.SubPattern.getwidth",
    "re._parser.parse",
    "regex.Pattern._pickled_data",
    "jsonschema.Draft202012Validator._resolver",
    "referencing._core.Resolver._base_uri",
    "peft.tuners.tuners_utils.BaseTunerLayer.get_base_layer",
    "langchain_core.language_models.llms.BaseLLM._generate",
    "langchain_core.language_models.chat_models.BaseChatModel._convert_input",
    "langchain_core.language_models.chat_models.BaseChatModel._generate",
    "llama_index.core.llms.LLM._get_messages",
    "llama_index.core.llms.LLM._get_prompt",
)
"""Full names. Libraries of optional extras may be missing."""


def missing(names: Iterable[str] = USED) -> list[str]:
    """Return the names that the installed releases do not have."""
    return [name for name in names if _is_installed(name) and not _exists(name)]


def _is_installed(name: str) -> bool:
    return find_spec(name.partition(".")[0]) is not None


def _exists(name: str) -> bool:
    """Return whether a full name can be resolved: as an attribute, or as a module that must be imported first."""
    parts = name.split(".")
    value = importlib.import_module(parts[0])
    for end, part in enumerate(parts[1:], start=2):
        if not hasattr(value, part):
            try:
                importlib.import_module(".".join(parts[:end]))
            except ImportError:
                return False
        value = getattr(value, part)
    return True
