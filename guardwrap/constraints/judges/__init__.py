"""Constraints that ask a language model about a text."""
