"""Traces: both streams' predictions at every token of a text (`trace.schema.json` is the schema of a line)."""
