"""Context of every transformers call that reads a checkpoint: no questions to the user, errors in one line."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import dynamic_module_utils

from sira_cli.errors import ModelNotFoundError, SiraError

# Errors of transformers for torn weights, damaged JSON, sizes that do not match, a missing package, ...
LOAD_ERRORS = (
    *(OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ImportError),
    SafetensorError,
    StrictDataclassError,
)
_LOCK = threading.RLock()  # two simultaneous loads would reset each other's limit


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Read a checkpoint inside the block.

    If a part of a checkpoint has its own code, and the caller does not set whether to run it, transformers asks on
    stdin. Nested parts are always loaded that way. A time limit of 0 for the answer makes them fail.
    """
    with _LOCK:
        seconds = dynamic_module_utils.TIME_OUT_REMOTE_CODE
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
        try:
            yield
        except SiraError:
            raise
        except LOAD_ERRORS as error:
            # The message of a config's own check is in the error's cause.
            said = error.__cause__ or error if isinstance(error, StrictDataclassError) else error
            reason = str(said).strip().splitlines() or [type(error).__name__]
            raise ModelNotFoundError(f"the model in {folder} cannot be loaded: {reason[0]}") from error
        finally:
            dynamic_module_utils.TIME_OUT_REMOTE_CODE = seconds
