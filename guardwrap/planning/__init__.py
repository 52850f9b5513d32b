"""Estimates of what a run will cost, before it is paid for: the method ``plan()``.

Begin with ``plan``, the result that users see. ``pilot`` draws a few attempts to estimate from, ``alternatives``
compares the ways to draw the texts, and ``probability`` estimates how likely it is that a budget suffices.
"""
