"""A server in a separate process, for all tests that do not stop it."""

import httpx
import openai
import pytest

from guardwrap import GuardedGenerator
from guardwrap.serve.parsed_request import ANYTHING
from tests.serve.fixtures_server import Server, furnish


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return furnish(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def server(folder):
    running = Server(folder)
    yield running
    running.end()


@pytest.fixture(scope="session")
def guarded(folder):
    return GuardedGenerator(str(folder / "model"), ANYTHING)


@pytest.fixture(scope="session")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="session")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made
