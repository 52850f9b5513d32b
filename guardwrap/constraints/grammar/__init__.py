"""The ``Grammar`` constraint: texts in the language of a context-free grammar, parsed by ``llguidance``.

Begin with ``grammar``. ``llguidance_matcher`` checks that a grammar is within the limits and runs the library's parser.
"""
