"""Tiny random models for pipelines that are not text-generation, made from configurations: no hub, no files."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Regex as TokenizersRegex
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutomaticSpeechRecognitionPipeline,
    BartConfig,
    BartForConditionalGeneration,
    CLIPVisionConfig,
    ImageTextToTextPipeline,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Speech2TextConfig,
    Speech2TextFeatureExtractor,
    Speech2TextForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from guardwrap.testing import TableConfig, TableModel, World, character_tokenizer

LETTERS = "abcdef .\n"
AUDIO = np.random.default_rng(0).normal(size=48_000).astype(np.float32)
ENDS = {"decoder_start_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "bos_token_id": None}


def picture(seed: int = 0) -> Any:
    """A random image of 8 × 8 pixels."""
    from PIL import Image

    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8))


def made(model: type, config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model(config).eval()


def t5(letters: str = LETTERS) -> tuple[Any, PreTrainedTokenizerFast]:
    """A T5 whose end-of-sequence token also pads and begins."""
    tokenizer = character_tokenizer(letters)
    small = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=len(tokenizer), initializer_factor=0.6, **small, **ENDS)
    return made(T5ForConditionalGeneration, config), tokenizer


def bart(letters: str = LETTERS) -> tuple[Any, PreTrainedTokenizerFast]:
    tokenizer = character_tokenizer(letters)
    config = BartConfig(
        vocab_size=len(tokenizer),
        init_std=0.3,
        max_position_embeddings=32,
        forced_eos_token_id=None,
        **sizes(),
        **ENDS,
    )
    return made(BartForConditionalGeneration, config), tokenizer


def sizes() -> dict[str, int]:
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, **layers, **heads}


def llava() -> ImageTextToTextPipeline:
    tokenizer = character_tokenizer(LETTERS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    small = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    vision = CLIPVisionConfig(num_hidden_layers=1, image_size=8, patch_size=4, **small)
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=2,
        max_position_embeddings=64,
        initializer_range=0.25,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
        **small,
    )
    image = tokenizer.convert_tokens_to_ids("<image>")
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=image, vision_feature_layer=-1)
    model = made(LlavaForConditionalGeneration, config)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = 0
    size = {"height": 8, "width": 8}
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size=size, crop_size=size),
        tokenizer=tokenizer,
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=(
            "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in "
            "m['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}"
            "{% endfor %}{% if add_generation_prompt %}.{% endif %}"
        ),
    )
    return ImageTextToTextPipeline(model=model, processor=processor, tokenizer=tokenizer, task="image-text-to-text")


def whisper() -> AutomaticSpeechRecognitionPipeline:
    special = ["endoftext", "startoftranscript", "en", "transcribe", "translate", "startofprev", "notimestamps"]
    names = [*"abcdefĠ.", *(f"<|{name}|>" for name in special), *(f"<|{i / 10:.2f}|>" for i in range(4))]
    end, start, stamps = 8, 9, 14
    tokenizer = WhisperTokenizer(
        vocab={name: i for i, name in enumerate(names)},
        merges=[],
        **{f"{role}_token": "<|endoftext|>" for role in ("unk", "bos", "eos", "pad")},
    )
    tokenizer.add_special_tokens({"additional_special_tokens": names[start : stamps + 1]})
    extractor = WhisperFeatureExtractor(feature_size=4, hop_length=1600, chunk_length=4)
    config = WhisperConfig(
        vocab_size=len(names),
        num_mel_bins=4,
        max_source_positions=extractor.nb_max_frames // 2,
        max_target_positions=32,
        init_std=0.5,
        decoder_start_token_id=start,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **sizes(),
    )
    model = made(WhisperForConditionalGeneration, config)
    model.generation_config.no_timestamps_token_id = stamps
    model.generation_config.suppress_tokens = list(range(stamps, len(names)))
    return AutomaticSpeechRecognitionPipeline(model=model, tokenizer=tokenizer, feature_extractor=extractor)


def speech_to_text() -> AutomaticSpeechRecognitionPipeline:
    tokenizer = character_tokenizer(LETTERS)
    config = Speech2TextConfig(
        vocab_size=len(tokenizer),
        input_feat_per_channel=4,
        input_channels=1,
        conv_channels=8,
        max_source_positions=100,
        max_target_positions=32,
        init_std=0.5,
        **sizes(),
        **ENDS,
    )
    extractor = Speech2TextFeatureExtractor(feature_size=4, num_mel_bins=4, sampling_rate=16_000)
    model = made(Speech2TextForConditionalGeneration, config)
    return AutomaticSpeechRecognitionPipeline(model=model, tokenizer=tokenizer, feature_extractor=extractor)


WORDS = (
    *("tea", "coffee", "mug", "drink", "morning", "boat", "name", "dragon", "castle", "Lily", "One", "the", "a", "is"),
    *("and", "then", "day", "happy", ".", ",", "!", "?", "\n", "1", "x"),
)


def storyteller() -> tuple[Any, PreTrainedTokenizerFast]:
    """A Llama that says any of a few words next, so that a given one is never rare, and takes any prompt and chat."""
    vocabulary = {word: i for i, word in enumerate(("<end>", "<s>", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="x"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(TokenizersRegex(r"\w+|\n|[^\w\s]"), "removed", invert=True)
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="<end>",
        pad_token="<end>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        initializer_range=0.1,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=1,
    )
    model = made(LlamaForCausalLM, config)
    model.generation_config.max_new_tokens = 20
    return model, fast


@torch.no_grad()
def law(model: Any, prompt: Sequence[int], *, longest: int, end: int = 0) -> dict[tuple[int, ...], float]:
    """a(y) of an encoder-decoder model for every y, from whole forward passes: no generate, no cache."""
    done: dict[tuple[int, ...], float] = {}
    frontier: dict[tuple[int, ...], float] = {(): 1.0}
    start = model.config.decoder_start_token_id
    for length in range(1, longest + 1):
        prefixes = list(frontier)
        seen = torch.tensor([list(prompt)] * len(prefixes))
        logits = model(input_ids=seen, decoder_input_ids=torch.tensor([[start, *prefix] for prefix in prefixes])).logits
        grown: dict[tuple[int, ...], float] = {}
        for prefix, row in zip(prefixes, logits[:, -1].double().softmax(-1).tolist(), strict=True):
            for token, step in enumerate(row):
                target = done if token == end or length == longest else grown
                target[(*prefix, token)] = frontier[prefix] * step
        frontier = grown
    return done


def template(anchor: str, thought: str, call: str, *, content: str = "json") -> dict[str, Any]:
    """A ``response_template``: reasoning and calls between two characters each, the rest is content."""
    calls = {"open": call[0], "close": call[1], "content": content, "repeats": True}
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": anchor,
        "fields": {
            "reasoning_content": {"open": thought[0], "close": thought[1], "content": "text"},
            "content": {"close_pattern": "<end>", "content": "text"},
            "tool_calls": calls | {"transform": {"type": "function", "function": "{content}"}},
        },
    }


def with_template(world: World) -> World:
    """Have a world's pipeline parse answers such as ``(reasoning)content[call]`` into messages."""
    world.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    world.tokenizer.response_template = template("a", "()", "[]")
    return world


def byte_tokenizer(texts: Sequence[str | bytes]) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer, as GPT-2's, whose tokens are these; bytes need not be whole characters."""
    letters = bytes_to_letters()
    names = ["".join(letters[byte] for byte in (text.encode() if isinstance(text, str) else text)) for text in texts]
    tokenizer = Tokenizer(models.BPE({"<end>": 0, **{name: i for i, name in enumerate(names, 1)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return fast(tokenizer)


def fallback_tokenizer(texts: Sequence[str | bytes]) -> PreTrainedTokenizerFast:
    """Return a tokenizer with byte fallback, as Llama's, whose tokens are these texts and single bytes."""
    names = [text.replace(" ", "▁") if isinstance(text, str) else f"<0x{text[0]:02X}>" for text in texts]
    vocabulary = {"<end>": 0, **{name: i for i, name in enumerate(names, 1)}}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return fast(tokenizer)


def bytes_to_letters() -> dict[int, str]:
    """Return what a byte-level tokenizer writes each byte as."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def fast(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return a tokenizer for transformers whose token 0 pads and ends."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", clean_up_tokenization_spaces=False
    )


def byte_world(tokenizer: PreTrainedTokenizerFast, *, max_new_tokens: int = 4, **settings: Any) -> World:
    """Return a finite world over a random table of a tokenizer's tokens."""
    config = TableConfig(vocab_size=len(tokenizer), max_position_embeddings=max_new_tokens + 16)
    model = TableModel(config)
    with torch.no_grad():
        model.table.copy_(torch.randn(model.table.shape, generator=torch.Generator().manual_seed(0)))
    for part in (model.config, model.generation_config):
        part.eos_token_id = part.pad_token_id = 0
        part.bos_token_id = None
    return World(model, tokenizer, "a", max_new_tokens, **settings)
