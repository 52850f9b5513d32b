"""Engines that mask tokens in transformers' ``generate``. Install those that you want to measure."""

import json
import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Rule = dict[str, Any] | str
"""A JSON schema, or a regular expression for the whole text."""
Compile = Callable[[Rule], Callable[[], Processor]]
"""From a rule to what makes a logits processor for one call. White space and the like are as by default."""


def outlines(model: Any, tokenizer: Any) -> Compile:
    package, backends = import_module("outlines"), import_module("outlines.backends")
    backend = backends.OutlinesCoreBackend(package.from_transformers(model, tokenizer))  # its default for both kinds

    def compiled(rule: Rule) -> Callable[[], Processor]:
        if isinstance(rule, str):
            processor = backend.get_regex_logits_processor(rule)
        else:
            processor = backend.get_json_schema_logits_processor(json.dumps(rule))

        def make() -> Processor:
            processor.reset()
            return processor  # type: ignore[no-any-return]

        return make

    return compiled


def xgrammar(model: Any, tokenizer: Any) -> Compile:
    package, hf = import_module("xgrammar"), import_module("xgrammar.contrib.hf")
    info = package.TokenizerInfo.from_huggingface(tokenizer, vocab_size=model.config.vocab_size)
    compiler = package.GrammarCompiler(info)

    def compiled(rule: Rule) -> Callable[[], Processor]:
        if isinstance(rule, str):
            grammar = compiler.compile_regex(rule)
        else:
            grammar = compiler.compile_json_schema(json.dumps(rule))
        return lambda: hf.LogitsProcessor(grammar)

    return compiled


def llguidance(model: Any, tokenizer: Any) -> Compile:
    # Its functions for torch compile a kernel first, which takes a second of CPU and gains nothing here.
    package, hf, masks = (import_module(f"llguidance{part}") for part in ("", ".hf", ".numpy"))
    tokens = hf.from_tokenizer(tokenizer, n_vocab=model.config.vocab_size)

    def compiled(rule: Rule) -> Callable[[], Processor]:
        kind, text = ("regex", rule) if isinstance(rule, str) else ("json_schema", json.dumps(rule))
        begin = package.LLMatcher(tokens, package.grammar_from(kind, text))

        def make() -> Processor:
            matchers: list[Any] = []

            def processor(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
                if not matchers:
                    matchers.extend(begin.deep_copy() for _ in ids)
                else:
                    for matcher, row in zip(matchers, ids, strict=True):
                        if not matcher.is_stopped():  # where nothing but the end may follow, or followed
                            matcher.consume_token(int(row[-1]))
                mask = masks.allocate_token_bitmask(len(ids), scores.shape[1])
                for number, matcher in enumerate(matchers):
                    masks.fill_next_token_bitmask(matcher, mask, number)
                masks.apply_token_bitmask_inplace(scores.numpy(), mask)
                return scores

            return processor

        return make

    return compiled


ENGINES: dict[str, Callable[[Any, Any], Compile]] = {
    "Outlines": outlines,
    "XGrammar": xgrammar,
    "llguidance": llguidance,
}


@torch.no_grad()
def log_probabilities(
    model: Any, prompt: torch.Tensor, tokens: tuple[int, ...], settings: dict[str, Any], mask: Processor
) -> tuple[float, float]:
    """Return log a and log a' of new tokens in ``generate``, without and with the mask, in nats; -inf where they are 0.

    The prompt is ``[1, length]``. The order is that of transformers: the mask, the temperature, top-k.
    """
    ids = torch.cat([prompt, torch.tensor([tokens])], dim=1)
    logits = model(input_ids=ids, logits_to_keep=len(tokens) + 1).logits[0, :-1].float()
    warpers: list[Processor] = [TemperatureLogitsWarper(settings["temperature"]), TopKLogitsWarper(settings["top_k"])]

    def under(processors: list[Processor]) -> float:
        total = 0.0
        for place, token in enumerate(tokens):
            scores = logits[place : place + 1].clone()
            for process in processors:
                scores = process(ids[:, : prompt.shape[1] + place], scores)
            total += float(scores.log_softmax(-1)[0, token])
            if total == -math.inf:  # an engine cannot continue from a token that it masks
                break
        return total

    return under(warpers), under([mask, *warpers])
