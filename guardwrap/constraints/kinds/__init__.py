"""Constraints that are neither JSON nor a grammar: text patterns, lengths, keywords, classifiers, your own functions.

Begin with ``text``, which has ``Regex``, ``Length``, ``Finished`` and ``TextConstraint``, the base class of all
constraints that judge one string. ``regex_analysis`` decides which prefix verdicts are sound for an expression.
"""
