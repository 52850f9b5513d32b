"""Answers of earlier calls: texts that a call with the same seed, model, rules and settings would draw again."""
