"""The ``JSONSchema`` constraint: validation of whole JSON texts, and verdicts on texts that are still growing.

Begin with ``json_schema``, the constraint itself. ``schema_validation`` reads a schema (``drafts``, ``references``,
``ecma_patterns``, ``formats``) and returns the validator for whole texts (``keywords``, ``support.lexical``).
``json_monitor`` is the incremental recognizer, which works on ``subschemas``, ``applicators`` and ``frames``.

Why not llguidance for prefixes? It is a dependency (see ``grammar``) and reads JSON Schema, but its verdicts are not
sound for us: it rejects texts that the schema allows, which would change the distribution of accepted texts. Its
grammar fixes the order of the keys, the way that integers are written, and the white space around the value. With
llguidance 1.9.1 (``docs/measurements/engine.md``):

- of 335 schemas of the official test suite, 174 cannot be expressed; ``not``, ``if``, ``contains`` and ``uniqueItems``
  are examples of unsupported keywords. Under the other schemas, 25 % of the valid texts are rejected (5 % without
  ``format``);
- of objects that four schemas allow, 63 to 87 % are rejected once their keys are in another order, 83 to 100 % of those
  with an integer if it is written ``1.0``, and all if a line break precedes or follows them;
- there is little time to save: for JSON of 500 tokens our verdicts take about 3 % of the CPU time.

Why not ``jsonschema`` alone? It judges complete values only, so the recognizer is needed anyway. For whole texts we use
its validator, with replacements where it falls short:

- it has no time limit, and runs ``pattern`` with ``re``: ``^(a|a)*$`` on 24 letters and a mismatch takes 1 s, and four
  times as long for every two letters more;
- ``uniqueItems`` compares all pairs of objects (12 s for 4000 of them, ours 0.01 s), and ``anyOf`` and ``oneOf`` keep
  all errors of all branches, each with the whole value in its message;
- floats make 4.02 not a multiple of 0.01;
- its format checkers accept ``@`` as an e-mail address and cannot be interrupted (``formats``);
- it has one set of keywords per draft. We rewrite all drafts as 2020-12, so that whole texts and prefixes are judged by
  the same rules.

Why not ``jsonschema-rs``? Version 0.61 agrees with the test suite and compares numbers exactly. But it reads 16 of 68
expressions otherwise than a JavaScript engine, cannot be interrupted, and takes an expression that exceeds its limit
for one that does not match, under ``anyOf`` and ``not`` too. The recognizer would still need the rest.

Why not the recognizer alone? Read to the end, it rejects all 2940 invalid texts of the suite. But it asks the validator
about ``format``, ``multipleOf`` and ``unevaluated``, and cannot say what is wrong with a value.

Why not ``referencing``? In three cases it resolves references otherwise than the draft says (``references``).
"""
