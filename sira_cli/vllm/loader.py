"""How the model gets its two streams, in vLLM's workers: by a load format around the one that was asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn
from vllm.model_executor.model_loader import get_model_loader, register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.v1.worker.gpu.model_states import resolve_model_state_cls
from vllm.v1.worker.gpu_worker import Worker as Worker  # vLLM finds it here, so this module is imported before

from sira_cli.vllm.plugin import KEY, SETTINGS, config_of
from sira_cli.vllm.state import TwoStreamState
from sira_cli.vllm.streams import install


@register_model_loader(KEY)
class Loader(BaseModelLoader):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Loads a model as ever, and installs the second stream."""

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
        """Return the model with two streams."""
        settings = vllm_config.additional_config[KEY]
        theirs = get_model_loader(dataclasses.replace(self.load_config, load_format=settings["load_format"]))
        model: nn.Module = theirs.load_model(vllm_config, model_config, prefix)
        base = resolve_model_state_cls(vllm_config, model)
        install(model, vllm_config, config_of({name: settings[name] for name in SETTINGS}))
        state = type(f"Sira{base.__name__}", (TwoStreamState, base), {})
        model.__dict__["get_model_state_cls"] = lambda: state
        return model

    def download_model(self, model_config: Any) -> None:
        """Do nothing: `load_model` downloads what it needs."""

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        """Do nothing: `load_model` has loaded them."""
