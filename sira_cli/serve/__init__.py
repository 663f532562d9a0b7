"""A server that decodes for clients of OpenAI's protocol."""
