"""alpha of each request: `extra_args={"sira": {"alpha": 0}}`."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from sira_cli.core.config import SiraConfig
from sira_cli.errors import SettingsError
from sira_cli.vllm.plugin import KEY


def alpha_of(params: Any) -> float | None:
    """Return the alpha that a request asks for; None: the server's.

    vLLM's HTTP interface (`vllm_xargs`) takes no nested values: there the same mapping is a text of JSON.

    Raises:
        SettingsError: anything else than an alpha of 0 or more is given.
    """
    given = (params.extra_args or {}).get(KEY)
    if given is None:
        return None
    if isinstance(given, str):
        with suppress(ValueError):
            given = json.loads(given)
    if not isinstance(given, dict) or set(given) != {"alpha"}:
        raise SettingsError(f'"{KEY}" of a request takes {{"alpha": NUMBER}} and nothing else; got {given!r}')
    return float(SiraConfig(alpha=given["alpha"]).alpha)


class AlphaOfRequest(LogitsProcessor):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Changes no logits: vLLM tells it before each forward which request is in which row.

    Attributes:
        of_row: alpha of the rows whose request gives one.
    """

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.of_row: dict[int, float] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request with a sentence, which is a 400 over HTTP."""
        alpha_of(sampling_params)
        if sampling_params.prompt_logprobs is not None:
            raise SettingsError("prompt_logprobs are not defined under SIRA: leave them out")

    def is_argmax_invariant(self) -> bool:
        """Return True: `apply` changes nothing."""
        return True

    def update_state(self, batch_update: Any) -> None:
        """Follow requests that came, moved and went."""
        process_dict_updates(self.of_row, batch_update, lambda params, prompt, output: alpha_of(params))

    def apply(self, logits: Any) -> Any:
        """Return the logits; `compute_logits` has contrasted them."""
        return logits
