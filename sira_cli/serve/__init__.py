"""The decoder behind OpenAI's protocol."""
