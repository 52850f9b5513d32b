"""Calls of transformers' pipelines: what goes in becomes requests, what comes out the pipeline's own records."""
