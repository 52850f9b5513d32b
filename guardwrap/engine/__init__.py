"""Where draws come from: the decoding loop and what surrounds it."""
