"""The models of a server: their rules, and when they are loaded and unloaded."""
