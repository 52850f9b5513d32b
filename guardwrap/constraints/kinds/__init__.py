"""Constraints that are neither JSON nor a grammar: text patterns, lengths, keywords, classifiers, your own functions.

Begin with ``text_constraint``, the base class of all constraints that judge one string, and ``text``, which has
``Regex`` and ``Length``. ``regex_analysis`` decides which prefix verdicts are sound for an expression.
"""
