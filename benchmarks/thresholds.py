"""Architectures whose computation may change with a text's length, and whether guardwrap draws and weighs as they do.

    python benchmarks/thresholds.py --out benchmarks/results/thresholds

builds every causal language model of the installed transformers as small as its configuration allows, with each
threshold that the configuration names (sliding windows, chunks, sparse attention, original lengths) set to a few
tokens, and with rotary embeddings that depend on the length or, as YaRN, name one. Texts begin before and after the
threshold and cross it. Each case has the largest difference, in nats per text, of

generate       drawn texts, and the same texts in model.generate, alone
weight         log-weights under the model itself as a proposal, and 0
batch          texts drawn with others, and alone
deterministic  the same with deterministic=True
cache          model.generate without a cache, and with one: transformers' own difference

"""

import argparse
import json
import math
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from guardwrap import GuardedGenerator, Length, Prompt
from guardwrap.errors import GuardwrapError
from guardwrap.testing import character_tokenizer

AT = 12
"""The threshold, in tokens."""

LETTERS = "abcdefghijklmnopqrstuvwxyz ."
PROMPTS = ["ab", "hello the", "hello there, you who read", "a"]
NEW = 20

_SMALL: dict[str, Any] = (
    dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "lru_width", "attention_hidden_size"), 32)
    | dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2)
    | dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4)
    | dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "n_inner", "ffn_hidden_size", "decoder_ffn_dim"), 48)
    | dict.fromkeys(("head_dim", "global_head_dim", "kv_channels", "attention_head_dim", "index_head_dim"), 8)
    | dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8)
    | dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"), 4)
    | dict.fromkeys(("num_experts_per_tok", "moe_topk", "num_key_value_heads", "index_n_heads", "o_groups"), 2)
    | dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts", "first_k_dense_replace"), 1)
    | dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16)
    | dict.fromkeys(("mlp_intermediate_size", "intermediate_size_mlp", "encoder_ffn_dim"), 48)
    | dict.fromkeys(("hidden_size_per_layer_input", "o_lora_rank", "mamba_d_head", "mamba_n_heads"), 8)
    | dict.fromkeys(("mamba_num_heads", "mamba_head_dim", "mamba_chunk_size", "linear_key_head_dim"), 8)
    | dict.fromkeys(("laurel_rank", "state_size", "mamba_d_state", "time_step_rank", "encoder_attention_heads"), 4)
    | dict.fromkeys(("swa_head_dim", "linear_value_head_dim"), 8)
    | dict.fromkeys(("linear_num_key_heads", "swa_num_key_value_heads", "index_kpool"), 2)
    | dict.fromkeys(("linear_num_value_heads", "swa_num_attention_heads"), 4)
    | dict.fromkeys(("attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout"), 0.0)
    | {"word_embed_proj_dim": 32, "mamba_d_ssm": 64, "mamba_expand": 2, "mamba_n_groups": 1, "rotary_dim": 4}
    | {"num_nextn_predict_layers": 0, "is_decoder": True, "tie_word_embeddings": False}
    | {
        "eos_token_id": 0,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "decoder_start_token_id": 1,
        "max_position_embeddings": 64,
    }
    | {"vocab_size": len(LETTERS) + 1, "vocab_size_per_layer_input": len(LETTERS) + 1}
)

_THRESHOLDS = (
    *("sliding_window", "attention_chunk_size", "keep_window_size", "index_topk", "attention_window_size"),
    *("window_size", "floor_scale", "local_attention_window_len", "original_max_position_embeddings"),
)
"""Settings that name a threshold."""

_OVERRIDES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 dots3_note dots3_note_text", {"num_key_value_heads": 4}),
    (
        "glm4_moe_lite glm5_next glm_moe_dsa longcat_flash minicpm3 mistral4 sarvam_mla youtu",
        {"num_key_value_heads": 4},
    ),
    ("qwen3_next qwen3_5_text qwen3_5_moe_text", {"layer_types": ["linear_attention", "full_attention"]}),
    ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1}),
    ("bamba", {"attn_layer_indices": [1]}),
    ("granitemoehybrid", {"layer_types": ["mamba", "attention"]}),
    ("gpt_neo", {"attention_types": [[["global", "local"], 1]]}),
    ("mamba2", {"num_heads": 8, "n_groups": 1}),
    ("falcon_h1", {"mamba_d_ssm": 32, "mamba_n_heads": 4}),
    ("recurrent_gemma", {"num_hidden_layers": 3}),
)
"""Settings that an architecture requires, by the names of architectures."""


def rotary(kind: str, like: Mapping[str, Any]) -> dict[str, Any]:
    """Return rotary parameters of a kind that depends on the length, or of each layer type if ``like`` has these."""
    nested = {name: rotary(kind, value) for name, value in like.items() if isinstance(value, dict)}
    if nested:
        return nested
    parameters = {**like, "rope_type": kind, "rope_theta": like.get("rope_theta", 1e4), "factor": 4.0}
    if share := like.get("partial_rotary_factor"):
        share = parameters["partial_rotary_factor"] = max(share, 0.5)
    if kind != "dynamic":
        parameters["original_max_position_embeddings"] = AT
    if kind == "longrope":
        size = int(8 * (share or 1.0)) // 2
        parameters |= {"short_factor": [1.0] * size, "long_factor": [2.0 + i for i in range(size)]}
        parameters |= {"short_mscale": 1.0, "long_mscale": 1.1}
    return parameters


def settings_of(name: str, case: str = "") -> dict[str, Any] | None:
    """Return the settings of a small model of an architecture; None if it has no such threshold."""
    kind = CONFIG_MAPPING[name]
    usual = kind()
    known = {*usual.to_dict(), *vars(usual), *usual.attribute_map}
    settings = {key: value for key, value in _SMALL.items() if key in known}
    for names, special in _OVERRIDES:
        settings |= special if name in names.split() else {}
    if not case:
        return settings
    if case == "windows":
        named = [key for key in _THRESHOLDS if key in known]
        return settings | dict.fromkeys(named, AT) if named else None
    parameters = getattr(usual, "rope_parameters", None)
    if not isinstance(parameters, dict) or not parameters:
        return None
    settings |= {"rope_parameters": rotary(case, parameters)}
    if case == "longrope":
        return settings | {"original_max_position_embeddings": AT}
    return settings | ({"max_position_embeddings": AT} if case == "dynamic" else {})


def built(name: str, settings: Mapping[str, Any]) -> Any:
    """Build a model with weights so large that its tokens depend on each other."""
    config = CONFIG_MAPPING[name](**settings)
    with torch.device("meta"):
        size = sum(weights.numel() for weights in AutoModelForCausalLM.from_config(config).parameters())
    if size > 2**23:
        raise ValueError(f"{size} parameters are too many")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for weights in model.parameters():
                if weights.dim() > 1:
                    torch.nn.init.normal_(weights, std=0.25)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = 0
    return model


class _Forced(LogitsProcessor):  # type: ignore[misc]
    """Chooses the tokens of a given text, and adds up their log-probabilities."""

    def __init__(self, new: Sequence[int], start: int) -> None:
        self.new, self.start, self.log = new, start, 0.0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = self.new[input_ids.shape[1] - self.start]
        self.log += float(scores[0].double().log_softmax(-1)[token])
        only = torch.full_like(scores, -math.inf)
        only[0, token] = 0.0
        return only


@torch.no_grad()
def log_generate(model: Any, prompt: Sequence[int], new: Sequence[int], **options: Any) -> float:
    """Return the log-probability with which ``model.generate`` draws a text first of all, in nats."""
    forced = _Forced(new, len(prompt))
    model(torch.tensor([[1]]), use_cache=False)  # a short text undoes what a long one left in dynamic rotary embeddings
    ids = torch.tensor([prompt])
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        logits_processor=LogitsProcessorList([forced]),
        max_new_tokens=len(new),
        do_sample=True,
        top_k=0,
        **options,
    )
    return forced.log


def measured(model: Any, *, attempts: int = 3, cache: bool = True) -> dict[str, float]:
    """Draw texts in batches and alone, and return the largest differences in nats; see the module."""
    tokenizer = character_tokenizer(LETTERS)
    options: dict[str, Any] = {"top_k": 0, "temperature": 1.0, "seed": 1, "max_new_tokens": NEW}

    def drawn(**how: Any) -> list[list[Any]]:
        guarded = GuardedGenerator(model, Length(min=0), tokenizer=tokenizer, **how)
        return guarded.attempts(PROMPTS, attempts, proposal=Prompt("{prompt}"), **options)

    def apart(others: list[list[Any]]) -> float:
        pairs = [pair for ours, theirs in zip(together, others, strict=True) for pair in zip(ours, theirs, strict=True)]
        if any(a.draw.token_ids != b.draw.token_ids for a, b in pairs):
            return math.inf
        return float(max(abs(a.draw.log_proposal - b.draw.log_proposal) for a, b in pairs))

    together = drawn(batch_size=5)
    result = {"generate": 0.0, "weight": 0.0, "cache": 0.0}
    for prompt, texts in zip(PROMPTS, together, strict=True):
        ids = tokenizer(prompt)["input_ids"]
        for attempt in texts:
            new, log = attempt.draw.token_ids, attempt.draw.log_proposal
            theirs = log_generate(model, ids, new)
            result["generate"] = max(result["generate"], abs(theirs - log))
            result["weight"] = max(result["weight"], abs(attempt.log_weight))
            if cache:
                uncached = log_generate(model, ids, new, use_cache=False)
                result["cache"] = max(result["cache"], abs(theirs - uncached))
    return result | {"batch": apart(drawn(batch_size=1)), "deterministic": apart(drawn(deterministic=True))}


@contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def result_of(name: str, case: str) -> dict[str, Any] | None:
    try:
        settings = settings_of(name, case)
        if settings is None:
            return None
        with _limit(60):
            model = built(name, settings)
            ids = torch.tensor([[1, 2, 3]])
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3)
    except Exception as error:  # an architecture that cannot be built so small, or not without other packages
        return {"not built": f"{type(error).__name__}: {error}".splitlines()[0][:120]}
    try:
        with _limit(240):
            return measured(model)
    except GuardwrapError as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:120]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="architectures, by their names in configurations")
    parser.add_argument("--cases", nargs="+", default=["windows", "dynamic", "longrope", "yarn"])
    parser.add_argument("--out", type=Path, default=Path("thresholds"))
    options = parser.parse_args(sys.argv[1:] if arguments is None else list(arguments))
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    written: dict[str, dict[str, Any]] = {}
    for name in options.only or sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) & set(CONFIG_MAPPING)):
        for case in options.cases:
            result = result_of(name, case)
            if result is not None:
                written.setdefault(name, {})[case] = result
                figures = [f"{key} {value:.1g}" if isinstance(value, float) else value for key, value in result.items()]
                print(f"{name:24} {case:8}", ", ".join(figures), flush=True)
    path = options.out.with_suffix(".json")
    path.write_text(json.dumps({"at": AT, "models": written}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
