"""Data about pictures: rows, groups, questions, prompts; existing captions; files of records."""
