"""`sira doctor`: what runs on this machine, how fast, and what to type next."""
