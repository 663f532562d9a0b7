"""What single requests ask of SIRA: `extra_args={"sira": {"alpha": 0}}`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor import LogitsProcessor as V1LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from sira_cli.core.config import SiraConfig
from sira_cli.core.rules import plausible
from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS
from sira_cli.models.preset import Generation
from sira_cli.models.sampling import pick, warpers
from sira_cli.parsing import from_json
from sira_cli.vllm.plugin import DRAW, KEY, SETTINGS, config_of

if TYPE_CHECKING:
    from sira_cli.vllm.streams import Streams

OWN = {"alpha", "view", "rule", "forced", "draw"}  # all but the first are for `engine`, and cannot come over HTTP
_NO_IDS: Any = None  # the warpers do not look at the text
VIEWS = {"full": 0.0, "cf": -1.0}  # alpha that leaves one stream alone


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


def alpha_of(params: Any, server: float) -> float:
    """Return the strength of a request's contrast; `server`: that of a request which asks for none."""
    asked = asked_of(params)
    if "view" in asked:
        return VIEWS.get(asked["view"], server)
    return float(asked.get("alpha", server))


def check_params(params: Any) -> None:
    """Refuse what a request cannot have.

    Raises:
        SettingsError: with a sentence that is a 400 over HTTP.
    """
    asked_of(params)
    if params.max_tokens == 1 and params.logprobs and params.watermarking is False and params.detokenize is False:
        raise SettingsError("beam search loses a request's alpha in vLLM: leave it out")  # these are its own requests
    if params.prompt_logprobs is not None or params.prompt_logprob_token_ids is not None:
        raise SettingsError("prompt_logprobs are not defined under SIRA: leave them out")


class Row:
    """One running request, and what it does to its logits.

    Attributes:
        cut: whether the server's cut-off by beta is for it.
        changes: whether `changed` does anything.
    """

    def __init__(self, params: Any, server: SiraConfig) -> None:
        asked = asked_of(params)
        alone = "view" in asked or "rule" in asked
        self.cut = server.beta is not None and not alone and alpha_of(params, server.alpha) != 0
        self._method: Any = None
        if rule := asked.get("rule"):
            self._method = METHODS[rule["method"]].with_values(**rule["settings"])
            # A request that is preempted comes back as a new row, with the same wishes.
            self._earlier: list[torch.Tensor] = rule.setdefault("earlier", [])  # [1, V] each
        self._forced = asked.get("forced")
        self._draw = asked.get("draw")
        self.changes = bool(self._method or self._forced or self._draw)
        if self._draw:
            self._random = torch.Generator().manual_seed(self._draw["seed"])
            self._warpers = warpers(Generation(**{name: self._draw[name] for name in DRAW}))
            self._drawn: list[torch.Tensor] = []

    def changed(self, logits: torch.Tensor, place: int) -> torch.Tensor:
        """Return logits `[1, V]` of the token at a place in the text, under the method's rule, or those that leave the
        next token only: a given one, or one drawn by the place's number.

        A step may be computed twice, or its token be thrown away.
        """
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


def cut_among(left: torch.Tensor, z_full: torch.Tensor, beta: float) -> torch.Tensor:
    """Cut off implausible tokens: `left [R, V]` is -inf where vLLM rules a token out.

    Where none of the plausible tokens is left, those that are plausible among the rest stay, as in process.
    """
    plain = plausible(left, z_full, beta)
    among = plausible(left, z_full.masked_fill(left.isneginf(), -torch.inf), beta)
    return torch.where(plain.isneginf().all(dim=-1, keepdim=True), among, plain)


def change(
    logits: torch.Tensor, z_full: torch.Tensor | None, rows: Mapping[int, Row], places: Mapping[int, int], beta: Any
) -> torch.Tensor:
    """Change the logits `[R, V]` of a batch in place, after vLLM's own masks.

    Args:
        logits: contrasted; -inf where a token must not come.
        z_full: those of the full stream `[R, V]`, which the cut-off looks at; None without beta.
        rows: by their numbers among the logits.
        places: of each row's next token in its text; a row without one has no next token yet.
        beta: of the cut-off.
    """
    cut = [index for index, row in rows.items() if row.cut]
    if cut and z_full is not None:
        logits[cut] = cut_among(logits[cut], z_full[cut], beta)
    for index, row in rows.items():
        if row.changes and index in places:
            logits[index : index + 1] = row.changed(logits[index : index + 1], places[index])
    return logits


class RequestRows(LogitsProcessor):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Does to logits what single requests ask for, after vLLM's own masks."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        settings = vllm_config.additional_config[KEY]
        self.server = config_of({name: settings[name] for name in SETTINGS})
        self.rows: dict[int, Row] = {}  # by slot
        self.streams: Streams | None = None
        self._prompts = req_states.prompt_len.np

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request with a sentence, which is a 400 over HTTP."""
        check_params(sampling_params)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Follow a request that came, into the slot of one that went."""
        row = Row(sampling_params, self.server)
        self.rows[req_idx] = row
        return row.cut or row.changes

    def apply(self, logits: Any, ctx: Any) -> Any:
        """Change the logits `[R, V]`, which `compute_logits` has contrasted."""
        slots: list[int] = ctx.idx_mapping_np.tolist()
        rows = {index: self.rows[slot] for index, slot in enumerate(slots) if slot in self.rows}
        place = ctx.seq_lens_upper_bound_np[: len(slots)] - self._prompts[ctx.idx_mapping_np]
        places = {int(index): int(place[index]) for index in np.flatnonzero(place >= 0)}
        z_full = None if self.streams is None else self.streams.z_full
        return change(logits, z_full, rows, places, self.server.beta)


class RequestRowsV1(V1LogitsProcessor):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Does to logits what single requests ask for, after vLLM's own masks."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        settings = vllm_config.additional_config[KEY]
        self.server = config_of({name: settings[name] for name in SETTINGS})
        self.rows: dict[int, tuple[Row, list[int]]] = {}  # by their places in the batch, with the text so far
        self.streams: Streams | None = None

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request with a sentence, which is a 400 over HTTP."""
        check_params(sampling_params)
        if sampling_params.seed is not None and sampling_params.temperature > 0:
            raise SettingsError("a seed ends vLLM's engine on CPUs when a prompt comes in chunks: leave it out")

    def is_argmax_invariant(self) -> bool:
        """Return False: `apply` changes the order of tokens."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests that came, moved and went."""

        def row(params: Any, prompt: Any, output: list[int]) -> tuple[Row, list[int]]:
            return Row(params, self.server), output

        process_dict_updates(self.rows, batch_update, row)

    def apply(self, logits: Any) -> Any:
        """Change the logits `[R, V]`, which `compute_logits` has contrasted."""
        known = {index: found for index, found in self.rows.items() if index < len(logits)}
        rows = {index: row for index, (row, _) in known.items()}
        places = {index: len(text) for index, (_, text) in known.items()}
        z_full = None if self.streams is None else self.streams.z_full
        return change(logits, z_full, rows, places, self.server.beta)
