"""The surroundings of guardwrap: files, threads, the process, the Hub, and private names of other libraries."""
