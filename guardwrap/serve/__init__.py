"""An HTTP server that speaks OpenAI's protocol: every text that leaves it satisfies the constraints of its request."""
