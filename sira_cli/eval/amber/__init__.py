"""AMBER: captions and yes/no questions about 1,004 pictures."""
