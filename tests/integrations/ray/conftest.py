import pytest

from guardwrap.testing import llama_world


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny random model over letters, on disk, which each worker loads."""
    folder = tmp_path_factory.mktemp("model")
    world = llama_world(letters="abcdef .\n0123456789", max_new_tokens=6)
    world.model.save_pretrained(folder)
    world.tokenizer.save_pretrained(folder)
    return str(folder)
