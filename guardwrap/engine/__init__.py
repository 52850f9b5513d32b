"""The engine: a scheduler of attempts that does not import torch, and the backends that draw them.

Begin with ``scheduling.scheduler`` and ``refill.decode``, our decoding loop. ``endpoint`` draws from servers.
"""
