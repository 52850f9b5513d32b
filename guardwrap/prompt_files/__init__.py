"""Prompts that come as lines of a file, what each asks for on its own, and the records that are made of them."""
