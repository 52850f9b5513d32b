"""Planning: the cost of a run, estimated from a pilot."""
