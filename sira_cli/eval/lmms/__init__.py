"""A model of lmms-eval: `python -m lmms_eval --model sira --model_args preset=llava-1.5-7b,method=sira`.

It finds the model by the entry point `lmms_eval.models`, which is `manifest`: nothing else is imported before it asks.

model       the classes that it calls, the only module that imports it
requests    its messages and settings in sira's terms, and their texts and losses
"""

from __future__ import annotations

from typing import Any


def manifest() -> Any:
    """Return lmms-eval's `ModelManifest` of the model `sira`: messages by default, with `--force_simple` plain text."""
    from lmms_eval.models.registry_v2 import ModelManifest

    home = "sira_cli.eval.lmms.model"
    return ModelManifest(
        model_id="sira", chat_class_path=f"{home}.SiraModel", simple_class_path=f"{home}.SimpleSiraModel"
    )
