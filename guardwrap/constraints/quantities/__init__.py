"""Constraints on the numbers, amounts and dates in a text, and on arithmetic. Begin with ``numerals``."""
