"""Integrations with other libraries, one module each: ``langchain``, ``llamaindex``, ``haystack``.

Each requires its library (``pip install 'guardwrap[langchain]'`` …), and is imported only on request.
"""
