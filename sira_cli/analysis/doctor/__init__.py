"""`sira doctor`: this machine, which presets fit, and what to type next."""
