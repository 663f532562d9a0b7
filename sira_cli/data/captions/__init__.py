"""Existing captions, read from all supported places, and written with other texts."""
