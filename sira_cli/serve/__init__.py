"""A server that decodes for clients of OpenAI's and Ollama's protocols."""
