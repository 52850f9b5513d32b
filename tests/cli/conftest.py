import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.cli.fixtures_commands import HAS_A, NEVER

LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
TEMPLATE = "{% for m in messages %}{{ m['content'] }}.{% endfor %}"


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny random model over letters, on disk, so that loading is fast and works offline."""
    folder = tmp_path_factory.mktemp("model")
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *LETTERS])}
    tokens = Tokenizer(models.WordLevel(vocabulary, unk_token="."))
    tokens.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokens.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="."
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def has_a(tmp_path):
    path = tmp_path / "has-a.yaml"
    path.write_text(HAS_A)
    return str(path)


@pytest.fixture
def never(tmp_path):
    path = tmp_path / "never.yaml"
    path.write_text(NEVER)
    return str(path)
