"""What single requests ask of SIRA: `extra_args={"sira": {"alpha": 0}}`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from sira_cli.core.config import SiraConfig
from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS
from sira_cli.models.preset import Generation
from sira_cli.models.sampling import pick, warpers
from sira_cli.parsing import from_json
from sira_cli.vllm.plugin import DRAW, KEY

OWN = {"alpha", "view", "rule", "forced", "draw"}  # all but the first are for `engine`, and cannot come over HTTP
_NO_IDS: Any = None  # the warpers do not look at the text
VIEWS = {"full": 0.0, "cf": -1.0, "contrast": None}  # alpha that leaves one stream alone


def asked_of(params: Any) -> dict[str, Any]:
    """Return the wishes of a request; empty: it has none.

    vLLM's HTTP interface (`vllm_xargs`) takes no nested values: there the same mapping is a text of JSON.

    Raises:
        SettingsError: anything else than an alpha of 0 or more is given.
    """
    given = (params.extra_args or {}).get(KEY)
    if given is None:
        return {}
    known = OWN
    if isinstance(given, str):
        known = {"alpha"}
        with suppress(ValueError):
            given = from_json(given)
    if not isinstance(given, dict) or not given or not given.keys() <= known:
        raise SettingsError(f'"{KEY}" of a request takes {{"alpha": NUMBER}} and nothing else; got {given!r}')
    if "alpha" in given:
        given = {**given, "alpha": float(SiraConfig(alpha=given["alpha"]).alpha)}
    return given


class Row:
    """One request in a batch."""

    def __init__(self, asked: dict[str, Any], text: list[int]) -> None:
        self.alpha: float | None = asked.get("alpha")  # its own; None: the server's
        self.whole = "view" in asked or "rule" in asked  # whether a cut-off by beta is left out
        if "view" in asked:
            self.alpha = VIEWS[asked["view"]]
        self._method: Any = None
        if rule := asked.get("rule"):
            self._method = METHODS[rule["method"]].with_values(**rule["settings"])
            # A request that is preempted comes back as a new row, with the same wishes.
            self._earlier: list[torch.Tensor] = rule.setdefault("earlier", [])  # [1, V] each
        self._forced, self._draw, self._text = asked.get("forced"), asked.get("draw"), text
        self.changes = bool(self._method or self._forced or self._draw)  # whether `changed` does anything
        if self._draw:
            self._random = torch.Generator().manual_seed(self._draw["seed"])
            self._warpers = warpers(Generation(**{name: self._draw[name] for name in DRAW}))
            self._drawn: list[torch.Tensor] = []

    def changed(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits `[1, V]` under the method's rule, or those that leave the next token only: a given one, or one
        drawn by the text's next number.

        A step may be computed twice, or its token be thrown away: the number is that of the token's place.
        """
        place = len(self._text)
        if self._method:
            z = logits.to(torch.float32, copy=True)  # vLLM changes them in place
            del self._earlier[place:]
            logits = self._method.rule(z, self._earlier, place).to(logits.dtype)
            self._method.keep(self._earlier, z)
            if not self._draw:
                return logits
        if self._forced:
            forced = torch.full_like(logits, -torch.inf)
            forced[:, self._forced[min(place, len(self._forced) - 1)]] = 0
            return forced
        while len(self._drawn) <= place:
            self._drawn.append(torch.rand((1,), generator=self._random, dtype=torch.float64))
        return pick(self._warpers(_NO_IDS, logits.float()), self._drawn[place][None]).to(logits.dtype)


class RequestRows(LogitsProcessor):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """vLLM tells it before each forward which request is in which row; `rows` are those that ask for something."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.rows: dict[int, Row] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request with a sentence, which is a 400 over HTTP."""
        asked_of(sampling_params)
        if sampling_params.prompt_logprobs is not None or sampling_params.prompt_logprob_token_ids is not None:
            raise SettingsError("prompt_logprobs are not defined under SIRA: leave them out")

    def is_argmax_invariant(self) -> bool:
        """Return False: `apply` changes the order of tokens."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests that came, moved and went."""

        def row(params: Any, prompt: Any, output: list[int]) -> Row | None:
            asked = asked_of(params)
            return Row(asked, output) if asked else None

        process_dict_updates(self.rows, batch_update, row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Apply methods' rules, and pick tokens; `compute_logits` has contrasted the logits `[R, V]`."""
        for index, row in self.rows.items():
            if row.changes and index < len(logits):
                logits[index : index + 1] = row.changed(logits[index : index + 1])
        return logits
