"""Adapters on disk: peft's two files and guardwrap's additions. Weights are loaded only from safetensors."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from guardwrap.adapters.card import Card, difference, readme
from guardwrap.adapters.lora import FIRST, LARGEST, PARTS_WAY_OUT, tensors_of
from guardwrap.errors import AdapterError, UnknownName, first_line
from guardwrap.proposals import HUB_ID
from guardwrap.support.files import CARD, CONFIG, PREFIX, adapters, write_whole
from guardwrap.support.network import reachable

WEIGHTS = "adapter_model.safetensors"
CURVE, README = "curve.jsonl", "README.md"
MAX_CONFIG = 1_000_000
"""Most bytes of ``adapter_config.json``."""

MAX_HEADER = 5_000_000
"""Most bytes of the safetensors header: for 30 000 tensors; the largest models' adapters have a few thousand."""

MAX_PATTERNS = 100
"""Most patterns for layers, unless the adapter has more layers. peft tries each pattern on each layer of the model."""

_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")

_ABOUT = {
    "auto_mapping",
    "base_model_name_or_path",
    "eva_config",
    "inference_mode",
    "init_lora_weights",
    "megatron_core",
    "peft_type",
    "peft_version",
    "revision",
    "runtime_config",
    "task_type",
}
"""Fields that do not affect the adapter's output. They are never passed to peft, as some make it import modules."""

_CHOICE = {"exclude_modules", "layers_pattern", "layers_to_transform", "rank_pattern", "target_modules"}
"""Fields that select layers and ranks, partly by regular expressions. Both are determined from the tensors instead."""

_CHANGES_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")


@dataclass(frozen=True)
class Files:
    """The content of an adapter's folder."""

    name: str  # the folder's name or Hub id
    config: LoraConfig  # configuration for peft, built only from fields known to be safe
    tensors: Mapping[str, torch.Tensor]  # stored tensors by name
    card: Card | None  # the adapter's card; None for a plain peft adapter

    def misfit(self, model: Any) -> str | None:
        """Return a message if the card says that the adapter was trained on another model than this one, else None."""
        if self.card is None or not (other := difference(model, self.card.base.fingerprint)):
            return None
        return f"the adapter {self.name!r} was trained on {self.card.base.name!r}, and this model has {other}"


def fetched(source: str | Path, revision: str | None = None) -> Path:
    """Return the folder of an adapter or checkpoint; for a Hub id, download the required files.

    ``"catalogue:<name>"`` is an adapter that comes with guardwrap.
    """
    if isinstance(source, str) and source.startswith(PREFIX):
        catalogue, name = adapters(), source.removeprefix(PREFIX)
        if name not in catalogue:
            raise UnknownName("adapter", name, sorted(catalogue))
        return catalogue[name]
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            return path
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise AdapterError(f"cannot read {str(source)[:200]!r}: {first_line(error)}") from None
    if exists:
        raise AdapterError(f"{str(source)!r} is a file; give the folder that contains {CONFIG} and {WEIGHTS}")
    if not isinstance(source, str) or not HUB_ID.fullmatch(source):
        raise AdapterError(f"there is no folder {str(source)[:200]!r}; give an adapter's folder or its Hub id")
    from huggingface_hub import snapshot_download

    wanted = [CONFIG, WEIGHTS, CARD, "config.json"]
    try:
        return Path(
            snapshot_download(source, revision=revision, allow_patterns=wanted, local_files_only=not reachable())
        )
    except Exception as error:  # from several libraries: no network, no such repository, no access …
        raise AdapterError(f"there is no folder {source!r}, and the Hub download failed: {first_line(error)}") from None


def read_adapter(folder: str | Path, name: str | None = None) -> Files:
    """Read an adapter's files without running anything in them.

    Parameters
    ----------
    folder
        The folder.
    name
        Name of the adapter in reports; None for the folder's name.

    Raises
    ------
    AdapterError
        If files are missing, corrupt, pickled or differ from the card's digests, or the kind of adapter is unsupported.
    """
    folder = Path(folder)
    name = name or folder.resolve().name
    if not (folder / CONFIG).is_file():
        raise AdapterError(f"{str(folder)!r} has no {CONFIG}; give a folder written by peft's save_pretrained")
    if not (folder / WEIGHTS).is_file():
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLED)
        if pickled:
            raise AdapterError(
                f"{str(folder)!r} has its weights in {pickled[0]!r}, a pickle, which can run any code when it is read; "
                "if you trust it, save it again with peft as safetensors"
            )
        raise AdapterError(f"{str(folder)!r} has no {WEIGHTS}")
    card = Card.read(folder / CARD) if (folder / CARD).exists() else None
    if card is not None:
        for file in (CONFIG, WEIGHTS):
            if card.files.get(file) != _sha256(folder / file):
                raise AdapterError(
                    f"{str(folder / file)!r} is not the file that the card describes: it was changed after "
                    f"training; download the adapter again, or delete {CARD} to use it as a plain peft adapter"
                )
    tensors = _read_tensors(folder / WEIGHTS)
    return Files(name, _read_config(folder / CONFIG, tensors), tensors, card)


def save_adapter(
    folder: str | Path, adapted: PeftModel, card: Card | None = None, curve: str | Path | None = None
) -> Card | None:
    """Write an adapter's folder; each file is replaced atomically, the card last.

    Parameters
    ----------
    folder
        The folder, which is created if it does not exist.
    adapted
        The adapter on its model.
    card
        The adapter's card, or None for only peft's two files.
    curve
        JSONL file of the learning curve to copy.

    Returns
    -------
    Card or None
        The written card, with the files' digests.

    Raises
    ------
    AdapterError
        If a file cannot be written.
    """
    folder = Path(folder)
    config = adapted.peft_config["default"].to_dict()
    config |= {
        "auto_mapping": None,
        "base_model_name_or_path": None if card is None else card.base.name,
        "inference_mode": True,
    }
    # Sets are sorted because their order differs between processes.
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    config.pop("runtime_config", None)
    files = {
        WEIGHTS: _weights_of(adapted),
        CONFIG: (json.dumps(config, indent=2, sort_keys=True, default=str) + "\n").encode(),
    }
    try:
        if curve is not None:
            files[CURVE] = Path(curve).read_bytes()
        if card is not None:
            digests = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
            card = card.model_copy(update={"files": digests})
            files[README] = readme(card, folder.resolve().name).encode()
            files[CARD] = card.to_yaml().encode()
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            write_whole(folder / file, [content])
        if card is None:
            (folder / CARD).unlink(missing_ok=True)  # a card of another adapter
    except OSError as error:
        raise AdapterError(f"cannot write {str(folder)!r}: {error.strerror or error}") from None
    if card is not None and Card.read(folder / CARD) != card:
        raise AdapterError(f"{str(folder / CARD)!r} does not read back unchanged; use plain JSON types in the card")
    return card


def measured_before(folder: str | Path, adapted: PeftModel) -> Card | None:
    """Return the card of an adapter's folder if it describes exactly the adapter's current weights, else None.

    Then its figures are still valid, even if the files were changed.
    """
    try:
        card = Card.read(Path(folder) / CARD)
    except AdapterError:  # missing or damaged
        return None
    digest = hashlib.sha256(_weights_of(adapted)).hexdigest()
    return card if card.files.get(WEIGHTS) == digest else None


def _weights_of(adapted: PeftModel) -> bytes:
    """Return the content of an adapter's ``adapter_model.safetensors``."""
    return save(tensors_of(adapted), metadata={"format": "pt"})


def _sha256(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AdapterError(f"cannot read {str(path)!r}: {error.strerror or error}") from None


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read tensors. safetensors verifies their sizes, so they cannot be larger than the file."""
    try:
        with open(path, "rb") as raw:
            header = int.from_bytes(raw.read(8), "little")
        # The library rejects headers that are larger than the file.
        if MAX_HEADER < header <= path.stat().st_size:
            raise AdapterError(
                f"{str(path)!r} has a header of more than {MAX_HEADER} bytes, which is too large for an adapter"
            )
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # file is not a mapping
    except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError) as error:
        raise AdapterError(f"{str(path)!r} is corrupt: {first_line(error)}") from None
    for key, tensor in tensors.items():
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise AdapterError(f"{str(path)!r}: {key[:200]!r} is of {kind}; an adapter's tensors must be floats")
    if not tensors:
        raise AdapterError(f"{str(path)!r} has no tensors")
    return tensors


def _read_config(path: Path, tensors: Mapping[str, torch.Tensor]) -> LoraConfig:
    """Build a configuration from fields known to be safe; reject unknown fields that would change the result."""
    given = _json(path)

    def wrong(reason: str) -> AdapterError:
        return AdapterError(f"{path}: {reason}")

    if given.get("peft_type") != "LORA":
        raise wrong(f"peft_type {str(given.get('peft_type'))[:40]!r} is not supported; only LORA adapters are")
    if given.get("task_type") not in (None, "CAUSAL_LM"):
        raise wrong(f"task_type {str(given['task_type'])[:40]!r} is not supported; only CAUSAL_LM adapters are")
    start = given.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise wrong(
            f"init_lora_weights {start[:40]!r} changes the model's own weights; save it again with peft's "
            "path_initial_model_for_weight_conversion"
        )
    usual = LoraConfig().to_dict()
    known: dict[str, Any] = {}
    for key, value in given.items():
        if key in _ABOUT or key in _CHOICE or value in (None, False, [], {}):
            continue
        if key not in _READ and key in usual and value == usual[key]:
            continue
        if key in ("bias", "modules_to_save", "trainable_token_indices"):
            raise wrong(f"{key} replaces parts of the model, which is not supported; {PARTS_WAY_OUT}")
        if key not in _READ:
            raise wrong(f"{key[:80]!r} is not supported; guardwrap loads plain LoRA, rsLoRA and DoRA adapters")
        if not _READ[key](value):
            way_out = "; name layers in it, e.g. 'layers.0.self_attn.q_proj', and save it again"
            raise wrong(
                f"{key} has the value {str(value)[:80]!r}, which is not supported"
                + (way_out if key == "alpha_pattern" else "")
            )
        known[key] = value
    if "lora_alpha" not in known or "r" not in known:
        raise wrong("r and lora_alpha are required; give numbers above 0")
    ranks = _ranks(tensors)
    if not ranks:
        raise wrong(f"{WEIGHTS} has no LoRA tensors")
    if len(known.get("alpha_pattern", ())) > max(MAX_PATTERNS, len(ranks)):
        raise wrong(f"alpha_pattern has more than {MAX_PATTERNS} patterns, and more than the adapter has layers")
    # Escaped full names instead of patterns. peft tries every pattern on every layer, so layers of the most common rank
    # get none.
    known["r"] = Counter(ranks.values()).most_common(1)[0][0]
    others = {re.escape(layer): rank for layer, rank in ranks.items() if rank != known["r"]}
    return LoraConfig(**known, target_modules=sorted(ranks), rank_pattern=others)


def _json(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_CONFIG + 1)
        if len(raw) > MAX_CONFIG:
            raise AdapterError(f"{path}: larger than {MAX_CONFIG} bytes")
        given = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path}: malformed JSON: {first_line(error)}") from None
    except OSError as error:
        raise AdapterError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    if not isinstance(given, dict):
        raise AdapterError(f"{path}: the file is not a JSON object; peft writes one")
    return given


def _ranks(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return the rank of each adapted layer by name."""
    found = {}
    for key, tensor in tensors.items():
        name = FIRST.fullmatch(key)
        if name and tensor.dim() == 2:
            found[name[1]] = tensor.shape[0]
    return found


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST


def _whole(value: Any) -> bool:
    return _number(value) and isinstance(value, int)


_NAME = re.compile(r"\^?(\.\*\\\.)?(\w|\\?\.){1,200}\$?")
"""A layer's name in the form that peft writes: optionally anchored, with escaped dots, or with ``.*\\.`` before it.
Other patterns are rejected because they could take exponential time to match."""

_READ: Mapping[str, Callable[[Any], bool]] = {
    "r": _whole,
    "lora_alpha": _number,
    "lora_dropout": lambda value: _number(value) and value < 1,
    "fan_in_fan_out": lambda value: value is True,
    "use_rslora": lambda value: value is True,
    "use_dora": lambda value: value is True,
    "lora_bias": lambda value: value is True,
    "alpha_pattern": lambda value: (
        isinstance(value, dict) and all(_NAME.fullmatch(name) and _number(alpha) for name, alpha in value.items())
    ),
}
"""Fields that are passed to peft, each with a check of its value."""
