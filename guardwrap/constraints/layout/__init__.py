"""Constraints on how a text is built: its edges, its parts, their order, copies of other texts, how deep it nests."""
