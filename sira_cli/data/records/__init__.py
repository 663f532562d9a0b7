"""Records: one per picture, in files that a later run continues, and as tables."""
