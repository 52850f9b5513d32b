"""One call, from its options to its outcomes, and what surrounds it: prompts from files, plans and records.

Begin with ``sessions``, where a pipeline or a server, a constraint and the options of a call come together. ``job``
turns prompts into requests and runs them, ``source`` says what attempts are drawn from, ``plan`` what a run will cost,
and ``prompts`` and ``records`` read and write files.
"""
