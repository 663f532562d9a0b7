"""The frame of every call into transformers that reads a checkpoint: nobody is asked anything, errors are one line."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import dynamic_module_utils

from sira_cli.errors import ModelNotFoundError, SiraError

# What transformers raises for torn weights, damaged JSON, sizes that do not match, a missing package, ...
LOAD_ERRORS = (
    *(OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ImportError),
    SafetensorError,
    StrictDataclassError,
)
_LOCK = threading.RLock()  # two loads at once would put each other's limit back


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Read a checkpoint inside the block.

    Where a part of a checkpoint brings code of its own and transformers was not told whether to run it, it asks on
    stdin, and takes a `y` for a yes. Parts of parts are loaded without being told. With no time to answer they fail.

    Raises:
        ModelNotFoundError: transformers has something against the files.
    """
    with _LOCK:
        seconds = dynamic_module_utils.TIME_OUT_REMOTE_CODE
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
        try:
            yield
        except SiraError:
            raise
        except LOAD_ERRORS as error:
            # What a config's own check says stands in its cause.
            said = error.__cause__ or error if isinstance(error, StrictDataclassError) else error
            reason = str(said).strip().splitlines() or [type(error).__name__]
            raise ModelNotFoundError(f"the model in {folder} cannot be loaded: {reason[0]}") from error
        finally:
            dynamic_module_utils.TIME_OUT_REMOTE_CODE = seconds
