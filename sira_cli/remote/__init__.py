"""A model on another server that speaks OpenAI's protocol: its answers about pictures."""
