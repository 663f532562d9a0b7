"""`deco`: an earlier layer's logits added to those of the likeliest tokens (Wang et al. 2025, arXiv:2410.11779)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sira_cli.core.config import SiraConfig
from sira_cli.methods.base import Inputs, Method, like_layers
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from sira_cli.core.arguments import Args

WINDOW = (20, 29)  # the layers 20 to 28 of LLaVA-1.5-7B's 32


@dataclass(frozen=True)
class Deco(Method):
    """z + alpha * p * z_l on candidates, minus infinity on all other tokens (zjunlp/Deco, generation/utils.py).

    Candidates are the likeliest tokens: as many as reach the probability `top_p`, and `top_k` at most. z_l are the
    logits of the layer l, among late ones, that gives a candidate the largest probability p. An early layer's logits
    are the head's, applied to the layer's input after the model's final norm. The layer is chosen for each row of a
    batch separately.
    """

    name = "deco"
    alpha: float = setting(0.6, "weight of the earlier layer's logits", low=0)
    top_p: float = setting(0.9, "probability that the candidates have together", low=0, high=1, above_low=True)
    top_k: int = setting(20, "largest number of candidates", low=1)

    @contextmanager
    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Iterator[None]:
        """Put hooks on the late layers and after the model."""
        import torch

        from sira_cli.core.families import find_backbone
        from sira_cli.core.hooks import attached_hooks

        backbone = find_backbone(model)
        head = model.get_output_embeddings()
        inputs: dict[int, Tensor] = {}  # [B, d], the last row of each late layer's input

        def keep(number: int, layer: Any, args: Args) -> None:
            inputs[number] = args[0][:, -1].clone()  # a view would keep every row of the prompt

        def correct(model: Any, args: Any, output: Any) -> Any:
            rows = [row.to(head.weight.device) for row in inputs.values()]
            early = head(backbone.norm(torch.stack(rows))).float()  # [C, B, V]
            z = output.logits[:, -1].float()  # [B, V]
            output.logits = self.rule(z, early.to(z.device))[:, None]  # [B, 1, V]
            return output

        with attached_hooks(model, backbone.norm) as handles:
            for number in like_layers(WINDOW, len(backbone.decoder_layers)):
                layer = backbone.decoder_layers[number]
                handles.append(layer.register_forward_pre_hook(partial(keep, number)))
            handles.append(model.register_forward_hook(correct))
            yield

    def rule(self, z: Tensor, early: Tensor) -> Tensor:
        """Correct the candidates' logits: `[B, V]` and the late layers' `[C, B, V]` give `[B, V]`."""
        import torch

        from sira_cli.core.rules import RULED_OUT, plausible

        count = min(self.top_k, z.shape[-1])
        probabilities, tokens = z.softmax(dim=-1).topk(count, dim=-1)  # [B, k]
        before = probabilities.cumsum(dim=-1) - probabilities
        among = before < self.top_p  # [B, k]: the token that reaches top_p is the last
        candidates = torch.zeros_like(z, dtype=torch.bool).scatter(-1, tokens, among)  # [B, V]

        p = early.softmax(dim=-1).masked_fill(~candidates, 0).amax(dim=-1)  # [C, B]
        largest, layer = p.max(dim=0)  # [B]
        rows = torch.arange(len(z), device=z.device)
        corrected = z + self.alpha * largest[:, None] * early[layer, rows]
        # Where a schema leaves no candidate, the cut-off is applied again among the tokens that it leaves.
        is_candidate = torch.zeros_like(z).masked_fill(~candidates, RULED_OUT)
        return plausible(corrected, is_candidate, beta=1.0)
