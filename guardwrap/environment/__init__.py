"""The environment that guardwrap runs in: files, the network, processes, threads, and other libraries."""
