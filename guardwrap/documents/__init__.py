"""Reading of files and texts from outside, which may be wrong or hostile, within limits on size, depth and time.

Begin with ``validation``, which turns a YAML file into validated data with errors of one line. ``yaml_nodes`` reads the
YAML, ``lexical`` JSON texts, ``limits`` holds the size limits, and ``time_limits`` the clock that checkers use, too.
"""
