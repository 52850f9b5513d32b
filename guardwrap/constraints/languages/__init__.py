"""Texts in the syntax of a language: the constraint ``Parses`` and the parsers that it asks.

Each function ``fault_in_...`` returns what is wrong with a text, or None if the parser accepts it. Texts come from a
model and may be hostile, so each parser is bounded: by the length of the text, by nesting, or by the time limit.
"""
