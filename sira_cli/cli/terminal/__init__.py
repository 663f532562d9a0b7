"""The terminal: messages, tables, progress, coloured texts."""
