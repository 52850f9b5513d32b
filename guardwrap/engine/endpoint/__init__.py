"""The backend that draws texts from a server with the OpenAI protocol: one streamed request per attempt."""
