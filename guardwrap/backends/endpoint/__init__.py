"""Texts drawn from a server that speaks the OpenAI protocol: one streamed request an attempt."""
