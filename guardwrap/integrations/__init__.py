"""The wrapper inside other libraries, one module each: ``langchain``, ``llamaindex``, ``haystack``.

Each needs its library (``pip install 'guardwrap[langchain]'`` …), and is imported only when it is asked for.
"""
