"""What single requests ask of SIRA: `extra_args={"sira": {"alpha": 0}}`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.sample.logits_processor import LogitsProcessor as V1LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from sira_cli.core.config import SiraConfig
from sira_cli.core.rules import plausible
from sira_cli.errors import SettingsError
from sira_cli.methods import METHODS
from sira_cli.models.preset import Generation
from sira_cli.models.progress import token_scores
from sira_cli.models.sampling import pick, warpers
from sira_cli.parsing import from_json
from sira_cli.vllm.plugin import DRAW, KEY, SCORED, SETTINGS, config_of

if TYPE_CHECKING:
    from sira_cli.vllm.streams import Streams

# All but the first are for `engine`, and cannot come over HTTP.
OWN = {"alpha", "view", "rule", "forced", "draw", "scores"}
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
        alpha = SiraConfig(alpha=given["alpha"]).alpha
        given = {**given, "alpha": float(alpha)}
    return given


def alpha_of(params: Any, server: float) -> float:
    """Return the strength of a request's contrast; `server`: that of a request which asks for none."""
    asked = asked_of(params)
    alpha = float(asked.get("alpha", server))
    return VIEWS.get(asked.get("view", ""), alpha)


class Row:
    """One running request, and what it does to its logits.

    Attributes:
        cut: whether the server's cut-off by beta is for it.
        changes: whether `changed` does anything.
        scores: the alpha of its tokens' scores; NaN: it asks for none.
    """

    def __init__(self, params: Any, server: SiraConfig) -> None:
        asked = asked_of(params)
        self.scores = float(asked.get("scores", math.nan))
        alone = "view" in asked or "rule" in asked
        contrasted = alpha_of(params, server.alpha) != 0
        self.cut = server.beta is not None and contrasted and not alone
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
            settings = {name: self._draw[name] for name in DRAW}
            self._warpers = warpers(Generation(**settings))
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
            last = len(self._forced) - 1
            forced[:, self._forced[min(place, last)]] = 0
            return forced
        while len(self._drawn) <= place:
            number = torch.rand((1,), generator=self._random, dtype=torch.float64)
            self._drawn.append(number)
        warped = self._warpers(_NO_IDS, logits.float())
        picked = pick(warped, self._drawn[place][None])
        return picked.to(logits.dtype)


def _cut(left: torch.Tensor, z_full: torch.Tensor, beta: float) -> torch.Tensor:
    """Cut off implausible tokens: `left [R, V]` is -inf where vLLM rules a token out.

    Where none of the plausible tokens is left, those that are plausible among the rest stay, as in process.
    """
    plain = plausible(left, z_full, beta)
    rest = z_full.masked_fill(left.isneginf(), -torch.inf)
    among = plausible(left, rest, beta)
    nothing = plain.isneginf().all(dim=-1, keepdim=True)
    return torch.where(nothing, among, plain)


class _Rows:
    """What single requests ask for is done to logits after vLLM's own masks."""

    streams: Streams  # of the model, from the start on

    def __init__(self, vllm_config: Any, *unused: Any) -> None:
        settings = vllm_config.additional_config[KEY]
        self.server = config_of({name: settings[name] for name in SETTINGS})

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse what a request cannot have, with a sentence that is a 400 over HTTP."""
        asked_of(sampling_params)
        if sampling_params.prompt_logprobs is not None or sampling_params.prompt_logprob_token_ids is not None:
            raise SettingsError("prompt_logprobs are not defined under SIRA: leave them out")
        one_token = sampling_params.max_tokens == 1 and sampling_params.logprobs
        if one_token and sampling_params.watermarking is False and sampling_params.detokenize is False:
            raise SettingsError("beam search, whose requests these are, loses alpha in vLLM: leave it out")

    def change(self, logits: torch.Tensor, rows: Sequence[Row | None], places: Sequence[int]) -> torch.Tensor:
        """Change the logits `[R, V]` of R requests in place; `places`: of their next tokens in their texts."""
        cut = [index for index, row in enumerate(rows) if row and row.cut]
        if cut and self.server.beta is not None:
            z_full, _ = self._both_streams()
            logits[cut] = _cut(logits[cut], z_full[cut], self.server.beta)
        for index, row in enumerate(rows):
            if row and row.changes and places[index] >= 0:  # or a prompt's chunk, whose logits nobody takes
                own = slice(index, index + 1)
                logits[own] = row.changed(logits[own], places[index])
        return logits

    def row_of(self, params: Any) -> Row:
        """Return the row of a request that comes."""
        row = Row(params, self.server)
        self.streams.keeps |= not math.isnan(row.scores)
        return row

    def score(self, output: Any, rows: Sequence[Row | None]) -> Any:
        """Put scores of the tokens that vLLM has sampled into its output, for R requests; nothing waits for the device.

        They take the places of two log-probabilities: a request asks for those of the tokens `SCORED`.
        """
        alphas = [row.scores if row else math.nan for row in rows]
        asked = np.array(alphas, dtype=np.float32)
        if np.isnan(asked).all():
            return output
        z_full, z_cf = self._both_streams()
        alpha = async_tensor_h2d(asked, device=z_full.device)[:, None]
        scores = token_scores(output.sampled_token_ids.long(), z_full, z_cf, alpha)
        places = output.logprobs_tensors.logprobs[:, 1 : 1 + len(SCORED)]
        places.copy_(torch.where(alpha.isnan(), places, scores))
        return output

    def _both_streams(self) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.streams.z is not None  # `keeps` has been set before the forward
        return self.streams.z


class RequestRows(_Rows, LogitsProcessor):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """In model runner V2, which knows requests by their slots."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        super().__init__(vllm_config)
        self.rows: dict[int, Row] = {}
        self._prompts = req_states.prompt_len.np

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Follow a request that came, into the slot of one that went; return whether it changes anything."""
        row = self.rows[req_idx] = self.row_of(sampling_params)
        return row.cut or row.changes

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Change the logits `[R, V]`, which `compute_logits` has contrasted."""
        slots = ctx.idx_mapping_np
        places = ctx.seq_lens_upper_bound_np[: len(slots)] - self._prompts[slots]
        rows = [self.rows.get(slot) for slot in slots.tolist()]
        return self.change(logits, rows, places.tolist())


class ScoringSampler:
    """Mixed into the class of V2's sampler."""

    sira: RequestRows

    def __call__(self, logits: torch.Tensor, input_batch: Any) -> Any:
        """Sample, and score what was sampled."""
        output = super().__call__(logits, input_batch)  # type: ignore[misc]
        slots = input_batch.idx_mapping_np.tolist()
        rows = [self.sira.rows.get(slot) for slot in slots]
        return self.sira.score(output, rows)


class RequestRowsV1(_Rows, V1LogitsProcessor):  # type: ignore[misc]
    """In model runner V1, which knows requests by their places in the batch, and tells when these change."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config)
        self.rows: dict[int, tuple[Row, list[int]]] = {}  # with the text so far

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse also what ends vLLM's engine."""
        super().validate_params(sampling_params)
        if sampling_params.seed is not None and sampling_params.temperature > 0:
            raise SettingsError("a seed ends vLLM's engine on CPUs when a prompt comes in chunks: leave it out")

    def is_argmax_invariant(self) -> bool:
        """Return False: `apply` changes the order of tokens."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests that came, moved and went."""
        process_dict_updates(self.rows, batch_update, lambda params, _, text: (self.row_of(params), text))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Change the logits `[R, V]`, which `compute_logits` has contrasted."""
        known = self._known(len(logits))
        rows = [row for row, _ in known]
        places = [len(text) for _, text in known]
        return self.change(logits, rows, places)

    def sample(self, sampler: Any, logits: torch.Tensor, *how: Any, **more: Any) -> Any:
        """Let vLLM's sampler sample, and score what was sampled."""
        output = sampler(logits, *how, **more)
        rows = [row for row, _ in self._known(len(logits))]
        return self.score(output, rows)

    def _known(self, count: int) -> list[tuple[Row | None, list[int]]]:
        nobody: tuple[Row | None, list[int]] = None, []
        return [self.rows.get(index, nobody) for index in range(count)]
