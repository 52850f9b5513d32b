"""Integrations with other libraries, one module each: ``langchain`` and ``llamaindex``.

Each requires its library (``pip install 'guardwrap[langchain]'`` …), and is imported only on request.
"""
