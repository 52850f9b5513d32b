"""Our decoding loop for transformers models, in which the next attempt at once takes the place of one that ends."""
