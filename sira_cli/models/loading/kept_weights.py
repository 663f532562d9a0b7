"""Quantized matrices in the cache: a later start maps them into memory, and reads the checkpoint's own no more."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sira_cli.errors import SiraError
from sira_cli.files import make_folder, replacing
from sira_cli.models.loading import presets
from sira_cli.models.loading.few_bits import FewBitsLinear, columns_together

VERSION = 1  # of the numbers and of the file
LEAST = 2**26  # bytes; fewer are quantized in half a second
ALIGNED = 64  # bytes that processors load at once
DTYPES = {torch.int8: "I8", torch.uint8: "U8", torch.bfloat16: "BF16"}  # as safetensors calls them

_log = logging.getLogger(__name__)


def path_of(folder: Path, quantization: str, dtype: torch.dtype) -> Path:
    """Return the path of a checkpoint's quantized matrices, `CACHE/weights/HASH-int4-bfloat16.safetensors`.

    Args:
        folder: of the checkpoint.
        quantization: `int8` or `int4`.
        dtype: precision in which the matrices were read.
    """
    checkpoint = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    name = f"{checkpoint}-{quantization}-{str(dtype).removeprefix('torch.')}.safetensors"
    return presets.cache() / "weights" / name


def origin_of(folder: Path) -> str:
    """Return a text that changes with the checkpoint's weights, the versions, and the layout of 4 bits here."""
    files = [(path.name, path.stat()) for path in sorted(folder.glob("*.safetensors"))]
    weights = [(name, each.st_size, each.st_mtime_ns) for name, each in files]
    return json.dumps([VERSION, transformers.__version__, columns_together(), weights])


def restore(model: Any, path: Path, origin: str) -> list[FewBitsLinear]:
    """Give quantized layers their matrices from a file of `keep`.

    Returns:
        The layers; none, if there is no such file, or it has another origin, is damaged, or lacks a layer.
    """
    layers = _few_bits(model)
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("origin") != origin:
                return []
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return []
    if tensors.keys() != {f"{name}.{part}" for name, layer in layers.items() for part in layer.parts_of_matrix}:
        return []
    for name, layer in layers.items():
        for part in layer.parts_of_matrix:
            setattr(layer, part, tensors[f"{name}.{part}"])
    return list(layers.values())


def keep(model: Any, path: Path, origin: str) -> None:
    """Write the matrices of quantized layers for `restore`. Where this fails, a warning says so."""
    tensors = {
        f"{name}.{part}": getattr(layer, part)
        for name, layer in _few_bits(model).items()
        for part in layer.parts_of_matrix
    }
    size = sum(each.nbytes for each in tensors.values())
    if size < LEAST:
        return
    try:
        make_folder(path.parent)
        if shutil.disk_usage(path.parent).free < 2 * size:  # the rest is for the user's files
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _write(path, origin, tensors)
    except (OSError, SiraError) as error:
        reason = getattr(error.__cause__ or error, "strerror", None) or error
        _log.warning("%s: quantized weights cannot be kept there (%s): every start quantizes them", path, reason)


def _few_bits(model: Any) -> dict[str, FewBitsLinear]:
    return {name: part for name, part in model.named_modules() if isinstance(part, FewBitsLinear)}


def _write(path: Path, origin: str, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file without a copy in memory. Where sizes are multiples of `ALIGNED`, so are beginnings."""
    header: dict[str, Any] = {"__metadata__": {"origin": origin}}
    ordered = sorted(tensors.items(), key=lambda item: item[1].nbytes % ALIGNED != 0)
    end = 0
    for name, each in ordered:
        begin, end = end, end + each.nbytes
        header[name] = {"dtype": DTYPES[each.dtype], "shape": list(each.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNED)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, each in ordered:
            file.write(each.flatten().view(torch.uint8).numpy().data)
