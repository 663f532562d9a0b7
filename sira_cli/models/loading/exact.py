"""The self-check of the fork, once per version of transformers, torch and sira."""

from __future__ import annotations

from contextlib import suppress

import torch
import transformers

from sira_cli._version import __version__
from sira_cli.errors import UnsupportedModelError
from sira_cli.models.loading import presets


def check_transformers() -> None:
    """Check that the fork is exact under the installed transformers; success is kept in the cache."""
    kept = (
        presets.cache() / "exact" / f"transformers-{transformers.__version__}-torch-{torch.__version__}-{__version__}"
    )
    with suppress(OSError):
        if kept.is_file():
            return
    from sira_cli.core import selfcheck  # imports a model

    if (failure := selfcheck.failure()) is not None:
        raise UnsupportedModelError(failure)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()
