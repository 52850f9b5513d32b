"""What the rest stands on: files and documents from outside, time limits, and private names of other libraries.

Begin with ``validation``, which turns a YAML file into validated data with errors of one line, ``time_limits``, the
clock of all checks, and ``transformers_internals``.
"""
