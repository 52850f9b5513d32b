"""HTML pages of results: content as plain data (``blocks``), its files (``result_files``), ``charts`` and ``html``.

``evaluation.evaluation_report`` and ``training.training_report`` turn results into blocks. This package does not import
torch.
"""
