"""Chats with images over HTTP, for a model that takes them."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi.testclient import TestClient

from guardwrap import GuardedGenerator, Regex
from guardwrap.errors import ModelError
from guardwrap.models.loading import image_pipeline
from guardwrap.serve import parsed_request
from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.parsed_request import ANYTHING
from guardwrap.serve.routes import create_app
from guardwrap.serve.server_settings import ServerSettings
from tests.fixtures_models import llava, picture
from tests.serve.test_chat_messages import chat_of

RULE = {"guardwrap": {"constraint": {"kind": "not", "of": {"kind": "regex", "pattern": "b"}}}}


def data_url(image: Any, form: str = "png") -> str:
    data = io.BytesIO()
    image.save(data, form)
    return f"data:image/{form};base64,{base64.b64encode(data.getvalue()).decode()}"


def chat(*images: Any, text: str = "ab") -> list[Any]:
    shown = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    return [{"role": "user", "content": [*shown, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module")
def guarded() -> GuardedGenerator:
    return GuardedGenerator(llava(), ANYTHING)


@pytest.fixture(scope="module")
def client(guarded: GuardedGenerator) -> Iterator[openai.OpenAI]:
    settings = ServerSettings.model_validate({"name": "eye", "images": True, "limits": {"max_new_tokens": 8}})
    with TestClient(create_app(guarded, settings)) as http:
        yield openai.OpenAI(base_url="http://testserver/v1", api_key="any", http_client=http, max_retries=0)


def test_texts_are_those_in_process(client: openai.OpenAI, guarded: GuardedGenerator) -> None:
    """For images of every number; another image gives other texts."""
    texts = []
    for images in ([picture(1)], [picture(2)], [picture(1), picture(2)], []):
        fields: dict[str, Any] = {"model": "eye", "seed": 3, "max_tokens": 6, "temperature": 1, "n": 4}
        reply = client.chat.completions.create(messages=chat(*images), **fields, extra_body=RULE)
        texts.append([choice.message.content for choice in reply.choices])
        shown = [{"type": "image", "image": image} for image in images]
        content = [*shown, {"type": "text", "text": "ab"}]
        law: dict[str, Any] = {"seed": 3, "max_new_tokens": 6, "num_return_sequences": 4, "do_sample": True}
        (expected,) = guarded.run([[{"role": "user", "content": content}]], constraints=~Regex("b"), **law)
        assert texts[-1] == list(expected.texts)
        assert not any("b" in text for text in expected.texts)
    assert len({*map(tuple, texts)}) == 4


def test_a_string_is_a_chat_of_text_alone(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "eye", "seed": 3, "max_tokens": 6}
    plain = client.chat.completions.create(messages=[{"role": "user", "content": "ab"}], **fields)
    parts = client.chat.completions.create(messages=chat(), **fields)
    assert plain.choices[0].message.content == parts.choices[0].message.content


def test_the_responses_api_takes_them_as_well(client: openai.OpenAI) -> None:
    image: Any = {"type": "input_image", "image_url": data_url(picture(1)), "detail": "auto"}
    content: Any = [image, {"type": "input_text", "text": "ab"}]
    reply = client.responses.create(
        model="eye", input=[{"role": "user", "content": content}], max_output_tokens=6, extra_body={"seed": 3}
    )
    same = client.chat.completions.create(model="eye", messages=chat(picture(1)), max_tokens=6, seed=3)
    assert reply.output_text == same.choices[0].message.content


PNG = data_url(picture(1))


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ({"url": "https://example.com/a.png"}, "fetches nothing"),
        ({"url": "file:///etc/passwd"}, "fetches nothing"),
        ({"url": "/etc/passwd"}, "fetches nothing"),
        ({"url": "data:text/plain;base64,AAAA"}, "fetches nothing"),
        ({"url": PNG[:60]}, "not an image"),
        ({"url": PNG + "%"}, "not an image"),
        ({"url": "data:image/png;base64,"}, "not an image"),
        ({"url": "data:image/png;base64," + base64.b64encode(b"<svg/>" * 9).decode()}, "not an image"),
        ({"url": PNG, "detail": "high"}, "in the size"),
        ({"url": 3}, "must be a string"),
        (None, "in the field 'image_url'"),
    ],
    ids=str,
)
def test_images_that_are_refused(image: Any, problem: str) -> None:
    content = [{"type": "image_url", "image_url": image}]
    with pytest.raises(ErrorResponse, match=problem) as raised:
        chat_of([{"role": "user", "content": content}], images=True)
    assert raised.value.status == 400


def test_a_model_for_text_is_shown_no_images() -> None:
    with pytest.raises(ErrorResponse, match="does not take images"):
        chat_of([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}])


def test_a_small_file_with_a_huge_image_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    content = [{"type": "image_url", "image_url": {"url": PNG}}]
    assert chat_of([{"role": "user", "content": content}], images=True)[0]["content"][0]["image"].size == (8, 8)
    monkeypatch.setattr(parsed_request, "_PIXELS", 63)
    with pytest.raises(ErrorResponse, match="has 64 pixels"):
        chat_of([{"role": "user", "content": content}], images=True)


def test_no_image_starts_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has Ghostscript run PostScript."""
    started: list[Any] = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *options: started.append(options))
    content = [{"type": "image_url", "image_url": {"url": data_url(picture(1), "eps")}}]
    with pytest.raises(ErrorResponse, match="not an image in a known format"):
        chat_of([{"role": "user", "content": content}], images=True)
    assert not started


@pytest.mark.parametrize("form", ["png", "jpeg", "webp", "gif", "bmp", "tiff"])
def test_formats_of_images(form: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": data_url(picture(1), form)}}]
    assert chat_of([{"role": "user", "content": content}], images=True)[0]["content"][0]["image"].size == (8, 8)


def test_an_error_of_a_decoder_is_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*options: Any) -> None:
        raise RuntimeError("Failed to decode image")  # as for a broken AVIF

    monkeypatch.setattr("PIL.Image.Image.convert", fail)
    content = [{"type": "image_url", "image_url": {"url": PNG}}]
    with pytest.raises(ErrorResponse, match="not an image in a known format"):
        chat_of([{"role": "user", "content": content}], images=True)


def test_a_saved_model_is_loaded_with_its_processor(tmp_path: Path) -> None:
    made = llava()
    made.save_pretrained(tmp_path)
    made.processor.save_pretrained(tmp_path)
    assert image_pipeline(str(tmp_path)).task == "image-text-to-text"
    with pytest.raises(ModelError, match="as a model that takes images"):
        image_pipeline(str(tmp_path / "nothing"))
