"""The names of the server's model, and its description in the words of OpenAI's and Ollama's protocols."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from sira_cli.run.lvlm import Lvlm
from sira_cli.run.records import hash_of
from sira_cli.serve.ollama import short_name
from sira_cli.serve.protocol import MOST_ECHOED, Options, RequestError, shortened

OLLAMA_VERSION = "0.12.11"  # whose requests are understood: the first with `logprobs`
LEVELS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


class ShowRequest(Options):
    """A request to `/api/show`; older clients send `name`."""

    model: str = ""
    name: str = ""


class ServedModel:
    """The model of a server."""

    def __init__(self, lvlm: Lvlm, context: int) -> None:
        """Describe a loaded model."""
        self.names = [name for name in (lvlm.preset.name, lvlm.preset.model) if name]
        self._context, self._began, model = context, time.time(), lvlm.model
        self._parameters, self._size = model.num_parameters(), model.get_memory_footprint()
        self._modified = datetime.fromtimestamp(self._began, UTC).isoformat().replace("+00:00", "Z")
        self._digest = hash_of(model=lvlm.preset.model, revision=lvlm.revision, quantization=lvlm.quantization)
        self._family = family = model.config.model_type
        billions = self._parameters / 10**9
        self._details = {
            "parent_model": "",
            "format": "safetensors",
            "family": family,
            "families": [family],
            "parameter_size": f"{billions:.1f}B" if billions >= 1 else f"{1000 * billions:.2f}M",
            "quantization_level": lvlm.quantization or LEVELS[str(model.dtype).removeprefix("torch.")],
        }

    def check(self, name: str | None) -> None:
        """Check that a name, if one is given, is the model's."""
        if name is not None and name not in self.names:
            has = " or ".join(map(repr, self.names))
            message = f"model {shortened(name, MOST_ECHOED)!r} not found; this server has {has}"
            raise RequestError(message, 404, param="model", code="model_not_found")

    def models(self) -> dict[str, Any]:
        """Return OpenAI's list of models."""
        return {"object": "list", "data": [self.model(name) for name in self.names]}

    def model(self, name: str) -> dict[str, Any]:
        """Return OpenAI's description of the model under one of its names."""
        self.check(name)
        return {"id": name, "object": "model", "created": int(self._began), "owned_by": "sira"}

    def tags(self) -> dict[str, Any]:
        """Return Ollama's list of models."""
        return self._listed(modified_at=self._modified)

    def running(self) -> dict[str, Any]:
        """Return Ollama's list of models in memory: always this model."""
        return self._listed(expires_at="9999-12-31T23:59:59Z", size_vram=self._size, context_length=self._context)

    def version(self) -> dict[str, Any]:
        """Return the Ollama version to announce; clients choose features by it."""
        return {"version": OLLAMA_VERSION}

    def show(self, asked: ShowRequest) -> dict[str, Any]:
        """Return Ollama's description of the model."""
        self.check(short_name(asked.model or asked.name))
        return {
            **dict.fromkeys(("modelfile", "parameters", "template"), ""),
            "details": self._details,
            "model_info": {
                "general.architecture": self._family,
                "general.parameter_count": self._parameters,
                f"{self._family}.context_length": self._context,
            },
            "capabilities": ["completion", "vision"],
            "modified_at": self._modified,
        }

    def _listed(self, **more: Any) -> dict[str, Any]:
        common = {"size": self._size, "digest": self._digest, "details": self._details, **more}
        return {"models": [{"name": f"{name}:latest", "model": f"{name}:latest", **common} for name in self.names]}
