"""Traces: both streams' predictions at every token of a text.

settings  what is recorded, known before the model
task      a trace as a task of a run, and the files that keep traces
record    the lines of a text that is decoded or forced
read      traces read from files
"""

from pathlib import Path

SCHEMA = Path(__file__).parent / "trace.schema.json"
