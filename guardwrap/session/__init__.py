"""Sessions: the defaults that calls share, and one call as a ``Job``."""
