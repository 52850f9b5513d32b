"""Models of transformers: their pipelines and ``generate``, prompts, masks, and the messages that they write.

Begin with ``calls``, which reads the options of a call and renders its texts, ``prepare``, which finds the distribution
of a prompt, and ``regions``, which parses a message while it grows.
"""
