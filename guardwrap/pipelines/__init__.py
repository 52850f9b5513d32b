"""transformers' pipelines and ``generate``: options, prompts, messages, masks and early abort."""
