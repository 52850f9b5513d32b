"""Constraints as YAML files: reading, writing, and finding them by name.

A document becomes data, the data a validated class: ``constraint_data``, which knows the kinds, and ``file_fields``
validate. ``template`` fills in values first, and ``constraint_file`` has what users call.
"""
