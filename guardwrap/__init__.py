"""Guaranteed generation for Hugging Face models."""
