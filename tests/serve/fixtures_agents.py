"""A server of a scripted model of the Qwen family: it thinks, answers in words and JSON, and calls tools, at random."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import uvicorn

from guardwrap import GuardedGenerator
from guardwrap.serve.parsed_request import ANYTHING
from guardwrap.serve.routes import create_app
from guardwrap.serve.server_settings import ServerSettings
from guardwrap.testing import World
from tests.models.test_templates import piece_name, world_of

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Return a number.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
NAME = "tiny"
CALLS = [
    {"name": "f", "arguments": {"a": 1}},
    {"name": "f", "arguments": {"a": "one"}},  # violates the schema
    {"name": "final_result", "arguments": {"a": 1}},  # Pydantic AI's output
    {"name": "final_answer", "arguments": {"answer": "x"}},  # of smolagents
]
ANSWERS = [
    {"a": 1},
    {"answer": "x"},
    {"reasoning": "x", "answer": "x"},
    {"next_thought": "x", "next_tool_name": "f", "next_tool_args": {"a": 1}},  # of DSPy's ReAct
    {"next_thought": "x", "next_tool_name": "finish", "next_tool_args": {}},
]


def chat_world(*pieces: str) -> World:
    """Return a world whose model also writes ``pieces``."""
    world = world_of("Qwen or Hermes", more=pieces)
    # The model's table has 200 positions, so its prompt is short.
    template = str(world.tokenizer.chat_template).replace("['content']", "['content'][:50]")
    world.tokenizer.chat_template = "{# <tool_call> <think> #}" + template
    world.model.generation_config.do_sample = True
    return world


def agent_world() -> World:
    """Return a world whose model writes what the frameworks ask for, and other things."""
    calls = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in CALLS]
    pieces = [*calls, *map(json.dumps, ANSWERS)]
    world = chat_world(*pieces)
    whole = world.tokenizer.convert_tokens_to_ids([piece_name(piece) for piece in pieces])
    with torch.no_grad():  # they are often written, and often end a message
        world.model.table[:, :, whole] += 1.5
        world.model.table[:, whole, 0] += 4.0
    return world


@contextmanager
def running_server(world: World | None = None, **more: object) -> Iterator[str]:
    """Serve the model in a thread, with more settings. Yields the address of the API."""
    pipeline = (world or chat_world()).pipeline()
    limits = {"max_new_tokens": 12, "attempts": 5000}
    settings = ServerSettings.model_validate({"name": NAME, "limits": limits, **more})
    app = create_app(GuardedGenerator(pipeline, ANYTHING), settings)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = True
        thread.join()
