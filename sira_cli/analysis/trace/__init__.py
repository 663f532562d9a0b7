"""Traces: both streams' predictions at every token of a text.

request     pictures, prompts and texts to trace
record      decode a picture, or force a text on it, and write down the logits
rows        the numbers of a token line
logits      all logits, in a safetensors file
run         many pictures: yields events
file        the one file of many traces, which a later run continues
targets     destinations of lines: one file, a tree of files, or a listener
read        traces read from files
"""

from pathlib import Path

SCHEMA = Path(__file__).parent / "trace.schema.json"
