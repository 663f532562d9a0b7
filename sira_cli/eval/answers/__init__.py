"""Answers of methods, from files of sira or from elsewhere."""
