"""All logits of a trace in a safetensors file, written step by step: memory does not grow with the text."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from sira_cli.files import replacing, writing

_HEADER = 512  # bytes reserved for it; safetensors allows spaces after the JSON


class LogitsFile:
    """`logits` float32 `[steps, 3, V]` (full, cf, contrast) and `token_ids` int64 `[steps]`."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        """Begin the file; `path` is its name in messages."""
        self._path, self._file = path, file
        self._tokens: list[int] = []
        self._vocabulary = 0
        self._write(b" " * (8 + _HEADER))

    @classmethod
    @contextmanager
    def replacing(cls, path: Path | None) -> Iterator[LogitsFile | None]:
        """Yield a file that replaces `path` if the block ends without an error; None without a path."""
        if path is None:
            yield None
            return
        with replacing(path) as file:
            yield cls(path, file)

    def append(self, token: int, logits: Tensor) -> None:
        """Append one step: `[3, V]` in the order full, cf, contrast."""
        self._vocabulary = logits.shape[1]
        self._tokens.append(token)
        self._write(logits.float().cpu().contiguous().numpy().tobytes())

    def finish(self) -> None:
        """Write the header; before that, the file is unreadable."""
        steps = len(self._tokens)
        logits, ids = 4 * steps * 3 * self._vocabulary, 8 * steps
        self._write(struct.pack(f"<{steps}q", *self._tokens))
        header = {
            "__metadata__": {"views": "full, cf, contrast"},
            "logits": {"dtype": "F32", "shape": [steps, 3, self._vocabulary], "data_offsets": [0, logits]},
            "token_ids": {"dtype": "I64", "shape": [steps], "data_offsets": [logits, logits + ids]},
        }
        self._file.seek(0)
        self._write(struct.pack("<Q", _HEADER) + json.dumps(header).encode().ljust(_HEADER))

    def _write(self, data: bytes) -> None:
        with writing(self._path):
            self._file.write(data)
            self._file.flush()
