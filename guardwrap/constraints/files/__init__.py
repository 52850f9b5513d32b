"""Constraints as YAML files: reading, writing, and finding them by name.

Begin with ``constraint_file``, which reads and writes a file. ``coerce`` accepts everything that users pass as
constraints, ``kind_registry`` maps each ``kind`` to its class, ``named`` resolves references to other files, and
``proposal_fields`` handles the fields ``proposal`` and ``adapter``.
"""
