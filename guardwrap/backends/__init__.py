"""What draws attempts: our own decoding loop (``refill``) and transformers' (``generate``)."""
