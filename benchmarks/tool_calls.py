"""Count valid tool calls: families of chat templates × ``tool_choice``, in Python and over HTTP.

Each family's template is put on the tokenizer of the embedded model, which is not trained for tools: what is
measured is whether masks begin, write and end a call as the family does. ``auto`` is the model's own choice.

    python benchmarks/tool_calls.py
    python benchmarks/tool_calls.py --family GLM --random   # a random model with the same tokenizer
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from fastapi.testclient import TestClient
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, pipeline

from guardwrap import Budget, GuardedGenerator, Masked, ToolCalls, load_local
from guardwrap.serve.parsed_request import ANYTHING
from guardwrap.serve.routes import create_app
from guardwrap.serve.server_settings import ServerLimits, ServerSettings

OWN = "the embedded model's own"
FAMILIES = {
    OWN: None,
    "Qwen or Hermes": ("<|im_start|> <tool_call> <think>", "<|im_start|>assistant\n", "<|im_end|>"),
    "Qwen (calls in XML)": ("<|im_start|> <function= <parameter=", "<|im_start|>assistant\n", "<|im_end|>"),
    "DeepSeek": ("<｜Assistant｜> <think>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    "GLM": ("<|assistant|> <arg_key> <think>", "<|assistant|>", "<|observation|>"),
    "Mistral": ("[TOOL_CALLS] [ARGS]", "[/INST]", "</s>"),
    "Mistral (lists of calls)": ("[TOOL_CALLS]", "[/INST]", "</s>"),
    "Gemma": ("<start_of_turn>", "<start_of_turn>model\n", "<end_of_turn>"),
    "Gemma 4": ("<|turn> <|tool_call>", "<|turn>model\n", "<turn|>"),
    "Llama 3": ("<|start_header_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    "Harmony": ("<|channel|> <|message|>", "<|start|>assistant", "<|return|>"),
}
"""For each family: strings by which it is known, how an answer begins, and how it ends."""

TOOLS: list[dict[str, Any]] = [
    {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
    {
        "name": "add_event",
        "description": "Add an event to the calendar.",
        "parameters": {
            "type": "object",
            "properties": {
                "title": {"type": "string", "minLength": 1},
                "guests": {"type": "array", "items": {"type": "string"}},
                "place": {"type": "object", "properties": {"room": {"type": "integer"}}, "required": ["room"]},
            },
            "required": ["title", "place"],
        },
    },
]
CHOICES: dict[str, Any] = {"required": "required", "named": {"name": "add_event"}, "auto": "auto"}
CHAT = [{"role": "user", "content": "Book a room for lunch with Ada, and what is the weather in Paris?"}]
TEMPLATE = (
    "{{# {marks} #}}{{% if tools %}}system: These tools can be called: {{{{ tools | tojson }}}}\n{{% endif %}}"
    "{{% for m in messages %}}{{{{ m['role'] }}}}: {{{{ m['content'] }}}}{end}\n{{% endfor %}}{anchor}"
)


def pipeline_of(family: str, *, chance: bool) -> Any:
    """Return the embedded model, or a random one, with a family's chat template and end of messages."""
    model, tokenizer = load_local()
    if chance:
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            "llama", vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_config(config).eval()
    if (known := FAMILIES[family]) is not None:
        marks, anchor, end = known
        whole = json.loads(tokenizer.backend_tokenizer.to_str().replace(json.dumps(tokenizer.eos_token)[1:-1], end))
        made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(whole)), eos_token=end)
        made.pad_token = end
        made.chat_template = TEMPLATE.format(marks=marks, anchor=anchor.replace("\n", "{{ '\\n' }}"), end=end)
        tokenizer = made
    return pipeline("text-generation", model=model, tokenizer=tokenizer)


def in_python(pipe: Any, choice: Any, count: int, tokens: int) -> tuple[int, int, int]:
    """Return the number of messages with valid calls, of those that were returned, and of attempts."""
    rule = ToolCalls(TOOLS, choice=choice)
    masked = None if choice == "auto" else Masked(beyond_truncation=True)
    guarded = GuardedGenerator(pipe, rule, proposal=masked, budget=Budget(max_attempts=20 * count), on_exhausted="none")
    settings: dict[str, Any] = {"do_sample": True, "max_new_tokens": tokens, "seed": 1}
    (outcome,) = guarded.run([CHAT], tools=rule.definitions, num_return_sequences=count, **settings)
    calling = sum(bool(calls) for calls in outcome.tool_calls)
    return calling, len(outcome.draws), outcome.report.usage.attempts


def over_http(client: TestClient, choice: Any, count: int, tokens: int) -> tuple[int, int, int]:
    """Return the same for requests to ``/v1/chat/completions``, with the server's defaults."""
    sent = {"type": "function", "function": choice} if isinstance(choice, dict) else choice
    asked = {"tools": ToolCalls(TOOLS).definitions, "tool_choice": sent, "messages": CHAT, "model": "local"}
    reply = client.post("/v1/chat/completions", json={**asked, "n": count, "max_tokens": tokens, "seed": 1}).json()
    if "choices" not in reply:
        return 0, 0, reply["error"].get("guardwrap", {}).get("usage", {}).get("attempts", 0)
    messages = [choice["message"] for choice in reply["choices"]]
    rule = ToolCalls(TOOLS, choice=choice)
    valid = [
        message for message in messages
        if (calls := message.get("tool_calls"))
        and not any(rule.fault_of_call(json.dumps({"name": call["function"]["name"],
                                                   "arguments": json.loads(call["function"]["arguments"])}))
                    for call in calls)
    ]  # fmt: skip
    return len(valid), len(messages), reply["guardwrap"]["usage"]["attempts"]


def main() -> None:
    """Print the figures as a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--family", action="append", choices=[*FAMILIES])
    parser.add_argument("--choice", action="append", choices=[*CHOICES])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--random", action="store_true", help="a random model instead of the embedded one")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'family':26}{'choice':10}{'where':8}{'calls':>8}{'returned':>10}{'per text':>10}{'CPU s':>8}")
    for family in options.family or FAMILIES:
        pipe = pipeline_of(family, chance=options.random)
        settings = ServerSettings(model="local", name="local", limits=ServerLimits(n=options.count, seconds=600))
        with TestClient(create_app(GuardedGenerator(pipe, ANYTHING), settings)) as client:
            for name in options.choice or CHOICES:
                for where, run in (("Python", in_python), ("HTTP", over_http)):
                    began = time.process_time()
                    source = pipe if run is in_python else client
                    calls, returned, attempts = run(source, CHOICES[name], options.count, options.tokens)
                    row = f"{family:26}{name:10}{where:8}{calls:5}/{options.count}{returned:10}"
                    print(f"{row}{attempts / max(1, returned):10.2f}{time.process_time() - began:8.1f}", flush=True)


if __name__ == "__main__":
    main()
