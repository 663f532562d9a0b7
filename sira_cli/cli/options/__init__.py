"""Options that several commands share, and the objects that they stand for."""
