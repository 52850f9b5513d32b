"""Kinds of constraints that the rest of guardwrap does not know: plugged in by ``constraints.files.constraint_data``.

Each file has one kind, or a few that are read together, and is imported when one of them is used. Import the classes
from ``guardwrap`` or ``guardwrap.constraints``.
"""
