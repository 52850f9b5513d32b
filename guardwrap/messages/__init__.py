"""Messages that models write: reasoning, an answer and tool calls, and the templates that tell them apart."""
