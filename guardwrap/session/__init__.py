"""One call of a wrapper, from its options to its outcomes.

Begin with ``base_session``: it reads the options of a call, and ``local_session`` or ``endpoint_session`` adds what a
model or a server can do. ``source`` says what attempts are drawn from, ``job`` turns prompts into requests, runs them
and delivers outcomes, ``missing_texts`` has fallbacks and repair turns, and ``twisting`` what a twist learns.
"""
