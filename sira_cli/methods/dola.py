"""`dola`: the last layer against an early one (Chuang et al. 2024, arXiv:2309.03883)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from sira_cli.core.config import SiraConfig
from sira_cli.core.rules import plausible
from sira_cli.errors import SettingsError
from sira_cli.methods.base import Inputs, Method
from sira_cli.methods.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from sira_cli.core.arguments import Args


@dataclass(frozen=True)
class Dola(Method):
    """log P - log Q, then a cut-off. Q comes from the layer whose distribution differs most from P.

    Q is the output head applied to a layer's input h_l, without the final norm, as in the authors' code and in the
    version of transformers; the paper's text has the norm. The layer is chosen for each row of a batch separately.
    The advised repetition penalty of 1.2 is a setting of generation, off by default.
    """

    name = "dola"
    bucket: str | None = setting(
        None,
        "layers to pick from: low for long texts, high for short answers (none: low for captions, high for questions)",
        kind=str,
        choices=("low", "high"),
        optional=True,
    )
    relative_top: float = setting(0.1, "plausibility cut-off", low=0, high=1, above_low=True)

    def for_task(self, task: str) -> Self:
        """Fill in the bucket that the authors advise for the task."""
        return self if self.bucket is not None else replace(self, bucket="low" if task == "caption" else "high")

    @contextmanager
    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Iterator[None]:
        """Put hooks on the candidate layers and after the model."""
        import torch

        from sira_cli.core.families import find_backbone
        from sira_cli.core.hooks import attached_hooks

        backbone = find_backbone(model)
        head = model.get_output_embeddings()
        tied = head.weight is model.get_input_embeddings().weight
        early: dict[int, Tensor] = {}  # [B, d], last rows of the candidates

        def keep(number: int, layer: Any, args: Args) -> None:
            early[number] = args[0][:, -1]

        def contrast(model: Any, args: Any, output: Any) -> Any:
            rows = torch.stack(list(early.values()))  # [C, B, d]
            z = output.logits[:, -1].float()  # [B, V]
            log_q = head(rows.to(head.weight.device)).float().log_softmax(dim=-1)  # [C, B, V]
            output.logits = self.rule(z.log_softmax(dim=-1), log_q.to(z.device))[:, None]  # [B, 1, V]
            return output

        with attached_hooks(model, backbone.norm) as handles:
            layers = backbone.decoder_layers
            for number in self.candidates(len(layers), tied):
                handles.append(layers[number].register_forward_pre_hook(partial(keep, number)))
            handles.append(model.register_forward_hook(contrast))
            yield

    def candidates(self, layers: int, tied: bool) -> list[int]:
        """Return the layers whose inputs are candidates, chosen as in transformers."""
        middle = layers // 2
        deep = layers > 40
        if self.for_task("caption").bucket == "high":
            return list(range(layers - 20 if deep else middle, layers, 2))
        start = min(2, layers - 1) if tied else 0  # under a tied head h_0 predicts its own token
        if start == middle:  # only one layer is left
            return [start]
        low = list(range(start, 20 if deep else middle, 2))
        if not low:
            raise SettingsError(f"method dola: {layers} layers are too few for the bucket 'low': use high")
        return low

    def rule(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Contrast with the candidate of the largest Jensen-Shannon divergence: `[B, V]`, `[C, B, V]` -> `[B, V]`."""
        m = (log_p.exp() + log_q.exp()) / 2  # [C, B, V]
        log_m = m.log()
        # KL(M || P) and KL(M || Q): the order of arguments is the published code's
        divergence = (m * (2 * log_m - log_p - log_q)).nan_to_num(0).sum(dim=-1) / 2  # [C, B]
        best = divergence.argmax(dim=0)  # [B]
        chosen = log_q.gather(0, best[None, :, None].expand(1, *log_p.shape))[0]  # [B, V]
        return plausible(log_p - chosen, log_p, self.relative_top)
