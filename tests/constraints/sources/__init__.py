"""Tests of constraints on how a text is built."""
