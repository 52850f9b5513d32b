"""Constraints that compare a text with sources: documents, the prompt, or a list of what may occur."""
