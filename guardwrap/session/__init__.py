"""One call of a wrapper, from its options to its outcomes.

Begin with ``local_session``, where a pipeline, a constraint and the options of a call come together;
``endpoint_session`` does the same for a server, and ``base_session`` has what both share. ``job`` turns the prompts
into requests and runs them, ``resolve`` decides what attempts are drawn from, ``delivery`` and ``fallback`` handle
outcomes and missing texts, and ``pipeline_api`` lets a wrapper be used as a pipeline.
"""
