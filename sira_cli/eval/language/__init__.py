"""How captions become words."""
