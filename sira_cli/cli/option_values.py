"""What options with a few values may be."""

from __future__ import annotations

from enum import StrEnum


class Dtype(StrEnum):
    """Precision of the weights."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Engine(StrEnum):
    """Where pictures are decoded."""

    LOCAL = "local"
    RAY = "ray"


class OnLoop(StrEnum):
    """What becomes of a text that repeats itself."""

    KEEP = "keep"
    TRIM = "trim"
    RETRY = "retry"


class Quantization(StrEnum):
    """Bits of the weights."""

    BITS4 = "4bit"
    BITS8 = "8bit"


class OutputFormat(StrEnum):
    """What is written."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    WEBDATASET = "webdataset"
    LLAVA = "llava"


class ColorBy(StrEnum):
    """What the colours of words show."""

    GROUNDING = "grounding"
    DELTA = "delta"


class TextLengths(StrEnum):
    """How long texts are that a benchmark decodes."""

    OWN = "own"
    DRAWN = "drawn"
