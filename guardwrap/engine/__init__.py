"""Where ``load_local`` stood before; use ``from guardwrap import load_local``."""
