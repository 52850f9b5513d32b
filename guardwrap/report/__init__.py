"""A page of results: ``blocks`` (what it says, plain data), ``reading`` (from files), ``charts`` and ``html`` (shown).

What an evaluation or a training found becomes blocks in ``evaluation.report`` and ``training.report``. torch is not
imported here.
"""
