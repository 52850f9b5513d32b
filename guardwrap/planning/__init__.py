"""Estimates of what a run will cost, before it is paid for: the method ``plan()``.

Begin with ``plan``, the result that users see. ``pilot`` draws a few attempts for each way to draw the texts,
``estimates`` computes the cost of each, and ``choice`` is what ``sampler="auto"`` does with them.
"""
