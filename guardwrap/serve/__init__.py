"""OpenAI-compatible HTTP server: every text that it returns satisfies the constraints of its request."""
