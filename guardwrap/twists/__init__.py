"""Twisted proposals: automata that follow a constraint, and values of their states that attempts look ahead with."""
