"""Many rows on many machines: Ray Data, with a model in each worker."""
