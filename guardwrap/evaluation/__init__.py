"""Proposals and samplers compared: attempts are recorded once, and figures, plots and a report made of them.

``settings`` (one YAML file) → ``recording`` (attempts, kept as JSON Lines) → ``figures`` with ``tradeoff`` and
``reach`` (pure) → ``report`` (as a page); ``run`` goes all the way. torch is not imported here.
"""
