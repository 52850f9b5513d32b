"""Integrations with other libraries, one module each: ``langchain``, ``llamaindex``, ``trl`` and ``ray``.

Each is imported only on request. All but ``trl`` require their library (``pip install 'guardwrap[langchain]'`` …).
"""
