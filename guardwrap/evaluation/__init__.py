"""Comparison of proposals and samplers: attempts are recorded once; figures, plots and a report follow from them.

``evaluation_settings`` (one YAML file) → ``recording`` (attempts, as JSON Lines) → ``figures`` with ``tradeoff``
(pure functions) → ``evaluation_report`` (a page). ``evaluation_run`` does all of it, without torch.
"""
