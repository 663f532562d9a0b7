"""CHAIR: objects in captions that are not in the picture."""
