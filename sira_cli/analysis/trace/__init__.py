"""What both streams say at every token of a text: the lines of `sira trace`, and what is made of them."""

from pathlib import Path

SCHEMA = Path(__file__).parent / "trace.schema.json"
