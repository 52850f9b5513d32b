"""A server of a scripted model of the Qwen family: it thinks, answers, and calls the tool ``f``, at random."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from guardwrap import GuardedGenerator
from guardwrap.serve.parsed_request import ANYTHING
from guardwrap.serve.routes import create_app
from guardwrap.serve.server_settings import ServerSettings
from tests.messages.test_templates import world_of

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Return a number.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
NAME = "tiny"


@contextmanager
def running_server() -> Iterator[str]:
    """Serve the model in a thread. Yields the address of the API."""
    world = world_of("Qwen or Hermes")
    world.tokenizer.chat_template = "{# <tool_call> <think> #}" + (world.tokenizer.chat_template or "")
    world.model.generation_config.do_sample = True
    settings = ServerSettings.model_validate({"name": NAME, "limits": {"max_new_tokens": 12, "attempts": 5000}})
    app = create_app(GuardedGenerator(world.pipeline(), ANYTHING), settings)
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
