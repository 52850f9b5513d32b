"""The parameters of an endpoint, and that its key is not leaked."""

import builtins
import gc
import pickle
import threading

import pytest

from guardwrap import Endpoint, GuardedGenerator, Regex
from guardwrap.engine.endpoint.server import line_to
from guardwrap.errors import UsageError

URL, KEY = "http://localhost:8000/v1", "sk-very-secret-7"


def test_the_key_is_not_shown():
    made = Endpoint(URL + "/", model="m", api_key=KEY)
    assert repr(made) == f"Endpoint('{URL}', model='m')"
    assert KEY not in str(made)
    assert KEY.encode() not in pickle.dumps(made)
    assert pickle.loads(pickle.dumps(made)).base_url == URL


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"base_url": ""}, "base_url is str; give a string that is not empty"),
        ({"base_url": "localhost:8000"}, "is not a valid URL"),
        ({"base_url": "http://[::1"}, "is not a valid URL"),
        ({"base_url": f"http://me:{KEY}@localhost/v1"}, "pass a key as api_key="),
        ({"base_url": f"http://localhost/v1?key={KEY}"}, "pass a key as api_key="),
        ({"model": None}, "model is NoneType"),
        ({"api_key": f"{KEY}\u2026"}, "is not a valid key"),
        ({"timeout": 0}, "timeout=0"),
        ({"max_retries": -1}, "max_retries=-1"),
        ({"modle": "m"}, "has no option 'modle' (did you mean 'model'?)"),
    ],
)
def test_what_is_wrong_is_said_without_the_key(given, says):
    with pytest.raises(UsageError) as error:
        Endpoint(**{"base_url": URL, "model": "m", **given})
    assert says in str(error.value)
    assert KEY not in str(error.value)


def test_the_client_library_is_an_extra(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "openai":
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'guardwrap\[endpoint\]'"):
        GuardedGenerator(Endpoint(URL, model="m"), Regex(""))


def test_a_line_ends_with_its_endpoint():
    made = Endpoint(URL, model="m")
    line = line_to(made)
    assert line_to(made) is line
    assert line._thread in threading.enumerate()
    del made
    gc.collect()
    line._thread.join(timeout=5)
    assert line.loop.is_closed()
