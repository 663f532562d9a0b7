"""The entry point `lmms_eval.models`: names the classes of the model `sira` without importing them."""

from __future__ import annotations

from typing import Any


def manifest() -> Any:
    """Return lmms-eval's `ModelManifest` of the model `sira`: messages by default, with `--force_simple` plain text."""
    from lmms_eval.models.registry_v2 import ModelManifest

    home = "sira_cli.eval.lmms.model"
    return ModelManifest(
        model_id="sira", chat_class_path=f"{home}.SiraModel", simple_class_path=f"{home}.SimpleSiraModel"
    )
