"""The environment that guardwrap runs in: files, processes, threads, the Hub, and other libraries.

Begin with ``transformers_internals`` and ``library_internals``, which list the private names of other libraries that
guardwrap relies on. ``package_data`` finds the constraint files and adapters that come with the package.
"""
