"""Pipelines of GGUF files: of a ``Llama`` of llama-cpp-python, or of the path of a file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, TextGenerationPipeline

from guardwrap.engine.refill.llama_cpp import ROWS, LlamaCppModel
from guardwrap.errors import ModelError, UsageError, first_line

logger = logging.getLogger("guardwrap")

_CONTEXT = 1024
"""The length of the longest text, with its prompt, for a file whose ``Llama`` is made here."""

_PROBES = ("Tea for 2, isn't it?\n\n  1234 caf\u00e9s \u65e5\u672c", "  def f(x):\n\treturn x_1  # <b>")
"""Texts to which a tokenizer should give the tokens that llama.cpp does."""

_COMPARED = 500
"""The number of tokens that a tokenizer must write as llama.cpp does."""


def is_llama(generator: Any) -> bool:
    """Return whether something is a ``Llama`` of llama-cpp-python, without importing it."""
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(generator).__mro__}
    return ("llama_cpp", "Llama") in names


def gguf_pipeline(generator: Any, tokenizer: Any) -> TextGenerationPipeline:
    """Return a pipeline of a ``Llama``, or of the path of a GGUF file."""
    llm = generator if is_llama(generator) else _loaded(str(generator))
    model = LlamaCppModel(llm)
    if tokenizer is None:
        tokenizer = _tokenizer_of(llm)
    elif isinstance(tokenizer, str):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    require_tokenizer(tokenizer)
    _require_same_tokens(llm, tokenizer)
    _warn_of_beginning(llm, tokenizer)
    return TextGenerationPipeline(model=model, tokenizer=tokenizer, task="text-generation", batch_size=ROWS)


def _loaded(path: str) -> Any:
    try:
        from llama_cpp import Llama
    except ImportError:
        raise ModelError(f"drawing from {path!r} needs llama.cpp: pip install llama-cpp-python") from None
    try:
        return Llama(path, n_ctx=_CONTEXT, verbose=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"llama.cpp cannot load {path!r}: {first_line(error)}") from None


def _tokenizer_of(llm: Any) -> Any:
    """Convert the tokenizer of a file. Warns if it gives some texts, which may be prompts, other tokens."""
    path = Path(llm.model_path)
    way_out = "pass the tokenizer of the model that the file was made of, tokenizer=AutoTokenizer.from_pretrained(...)"
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # transformers may raise anything for a file that it does not support
        raise ModelError(
            f"transformers cannot read the tokenizer of {path.name!r} ({first_line(error)}); {way_out}"
        ) from None
    for text in _PROBES:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if ids != llm.tokenize(text.encode(), add_bos=False):
            words = "transformers gives some prompts other tokens than llama.cpp for %r; to give them the same, %s"
            logger.warning(words, path.name, way_out)
            break
    return tokenizer


def require_tokenizer(tokenizer: Any) -> None:
    """Raise UsageError for something that cannot decode tokens."""
    if not callable(getattr(tokenizer, "decode", None)):
        raise UsageError(
            f"tokenizer={tokenizer!r} is not a tokenizer; load one with AutoTokenizer.from_pretrained(...)"
        )


def _warn_of_beginning(llm: Any, tokenizer: Any) -> None:
    """Warn if one of the two begins prompts with a token that the other one leaves out."""
    bos = tokenizer.bos_token_id
    ours, theirs = (ids[:1] == [bos] for ids in (tokenizer("a")["input_ids"], llm.tokenize(b"a")))
    if bos is not None and ours != theirs:
        words = (
            "prompts that are strings %s %r here, and %s in llama.cpp; if that is wrong, set tokenizer.add_bos_token"
        )
        logger.warning(words, "begin with" if ours else "lack", tokenizer.bos_token, "lack it" if ours else "have it")


def _require_same_tokens(llm: Any, tokenizer: Any) -> None:
    """Require a tokenizer that writes tokens as llama.cpp does."""
    size = llm.n_vocab()
    for token in range(0, min(size, len(tokenizer)), max(1, size // _COMPARED)):
        ours, theirs = tokenizer.decode([token]), llm.detokenize([token], special=True).decode(errors="replace")
        if "\ufffd" not in ours and ours.strip() != theirs.strip():
            raise UsageError(
                f"the tokenizer is not that of the GGUF file: token {token} is {ours!r} there and {theirs!r} here"
            )
