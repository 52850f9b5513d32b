"""All settings that define a(y) are sent, whatever the server's defaults; others raise an error that names them."""

import pytest

from guardwrap import Endpoint
from guardwrap.engine.endpoint.endpoint_law import read_endpoint_settings
from guardwrap.errors import UsageError

AT = Endpoint("http://localhost:8000/v1", model="m")
PLAIN = Endpoint("http://localhost:8000/v1", model="m", extra=False)


def test_every_field_is_sent():
    read = read_endpoint_settings(AT, {})
    assert read.fields == {
        "max_tokens": 256,
        "temperature": 0.7,
        "top_p": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "n": 1,
    }
    assert read.extra == {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert read_endpoint_settings(PLAIN, {}).extra == {}
    assert (read.count, read.mode) == (1, "sample")


def test_options_have_the_names_of_transformers():
    given = {"max_new_tokens": 5, "temperature": 2, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2}
    read = read_endpoint_settings(AT, {**given, "num_return_sequences": 7, "stop_strings": "\n", "do_sample": None})
    assert read.fields["max_tokens"] == 5
    assert (read.fields["temperature"], read.fields["top_p"], read.fields["stop"]) == (2.0, 0.5, ["\n"])
    assert read.extra == {"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2}
    assert read.count == 7
    for name, value in given.items():
        assert f"{name}={value:g}" in read.words
    assert read.words.endswith(", up to one of 1 stop strings")


def test_greedy():
    read = read_endpoint_settings(AT, {"do_sample": False, "temperature": 0.5, "top_k": 3, "top_p": 0.5})
    assert (read.mode, read.words) == ("greedy", "greedy search")
    assert (read.fields["temperature"], read.fields["top_p"], read.extra["top_k"]) == (0.0, 1.0, -1)


@pytest.mark.parametrize(
    ("at", "options", "says"),
    [
        (
            AT,
            {"max_new_token": 5},
            "an endpoint has no option 'max_new_token' (did you mean 'max_new_tokens'?); it has",
        ),
        (AT, {"max_tokens": 5}, "(did you mean 'max_new_tokens'?)"),
        (AT, {"stop": "x"}, "(did you mean 'stop_strings'?)"),
        (AT, {"n": 2}, "(did you mean 'num_return_sequences'?)"),
        (AT, {"num_beams": 4}, "no option 'num_beams'"),
        (AT, {"max_time": 1.0}, "no option 'max_time'"),
        (AT, {"logits_processor": []}, "no option 'logits_processor'"),
        (AT, {"return_tensors": True}, "no option 'return_tensors'"),
        (AT, {"max_new_tokens": 0}, "max_new_tokens=0: give a whole number of at least 1"),
        (AT, {"temperature": 0.0}, "temperature=0.0: give a number of at least 0.01; greedy search is do_sample=False"),
        (AT, {"top_p": 1.5}, "top_p=1.5: give a number above 0 and at most 1"),
        (AT, {"min_p": float("nan")}, "min_p=nan: give a number of at least 0 and at most 1"),
        (AT, {"do_sample": 1}, "do_sample=1: give True or False"),
        (AT, {"stop_strings": [""]}, "stop_strings: give a string"),
        (AT, {"do_sample": False, "num_return_sequences": 2}, "greedy search gives only one text"),
        (PLAIN, {"top_k": 5}, "top_k is not part of the OpenAI protocol"),
        (PLAIN, {"min_p": 0.1}, "min_p is not part of the OpenAI protocol"),
    ],
)
def test_what_is_refused(at, options, says):
    with pytest.raises(UsageError) as error:
        read_endpoint_settings(at, options)
    assert says in str(error.value)
