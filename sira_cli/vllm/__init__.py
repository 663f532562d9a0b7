"""SIRA inside vLLM: its own model classes with two streams. Nothing here is imported without vLLM."""
