"""Backends, which draw attempts: our decoding loop (``refill``), transformers' loop, and servers (``endpoint``)."""
