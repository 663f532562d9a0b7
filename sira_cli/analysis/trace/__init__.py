"""Traces: both streams' predictions at every token of a text.

task      what a trace is, known before the model; the files that keep traces
record    the lines of a text that is decoded or forced
read      traces read from files
"""

from pathlib import Path

SCHEMA = Path(__file__).parent / "trace.schema.json"
