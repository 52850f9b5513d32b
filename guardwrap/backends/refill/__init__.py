"""Our own decoding loop over a transformers model: what ends makes room, and the next attempt takes it at once."""
