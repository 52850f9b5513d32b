"""Tiny GGUF files, written from random models of transformers."""

from pathlib import Path
from typing import Any

import torch

from guardwrap.testing import World


def write_gguf(world: World, path: Path) -> Path:
    """Write a Llama of transformers to a GGUF file in float32, with the tokens of its tokenizer."""
    import gguf

    model: Any = world.model
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    end = world.tokenizer.eos_token_id
    tokens = world.tokenizer.convert_ids_to_tokens(range(config.vocab_size))
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token == end else normal for token in range(len(tokens))])
    writer.add_token_merges([f"{tokens[0]} {tokens[1]}"])  # llama.cpp wants at least one
    writer.add_eos_token_id(end)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        weights = tensor.float()
        for part, count in heads.items():
            if part in name:  # llama.cpp rotates neighbors, and transformers halves
                halves = weights.view(count, 2, weights.shape[0] // count // 2, -1)
                weights = halves.transpose(1, 2).reshape(weights.shape)
        new = names.get_name(name, try_suffixes=(".weight",))
        if new is not None and not (config.tie_word_embeddings and new.startswith("output.")):
            writer.add_tensor(new, weights.to(torch.float32).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
