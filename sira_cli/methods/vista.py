"""`vista`: steered by what the picture changes, early logits mixed in (Li et al. 2025, arXiv:2502.03628)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from sira_cli.core.config import SiraConfig
from sira_cli.methods.base import Inputs
from sira_cli.methods.settings import setting
from sira_cli.methods.steering import find_mlps, steering_hook
from sira_cli.methods.text_only import WithoutImage

if TYPE_CHECKING:
    from torch import Tensor

STRENGTHS = {"caption": 0.17, "ask": 0.01}  # run_chair.sh and run_pope.sh
WINDOW = (25, 30)  # of LLaVA-1.5-7B's 32 layers, for the logits


@dataclass(frozen=True)
class Vista(WithoutImage):
    """(1 - mix) z + mix * mean of head(h_l) over late layers before the last, in a model that is steered.

    Steered: with v the change of a layer's output at the prompt's last token by the picture, an MLP's output x becomes
    ||x|| unit(unit(x) + strength (1 + max(0, cos(x, -v))) unit(v)) in every row (LzVv123456/VISTA). The published
    code's principal component of one difference is arbitrary, and left out.
    """

    name = "vista"
    strength: float | None = setting(
        None, "weight of the steering (none: 0.17 for captions, 0.01 for questions)", kind=float, low=0, optional=True
    )
    mix: float = setting(0.3, "weight of the earlier layers' logits", low=0, high=1)

    def for_task(self, task: str) -> Self:
        """Fill in the strength that the authors have for the task."""
        return self if self.strength is not None else replace(self, strength=STRENGTHS[task])

    def keyed(self, task: str) -> dict[str, Any]:
        """Return the settings with the strength in force."""
        return self.for_task(task).settings()

    def check_model(self, model: Any, config: SiraConfig) -> None:
        """Check that each layer has an MLP to steer."""
        find_mlps(model, self.name)

    @contextmanager
    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Iterator[None]:
        """Put hooks on layers, MLPs and the model; a prompt first runs twice more, with and without its image."""
        import torch
        from torch.nn import functional as F

        from sira_cli.core.arguments import CACHE
        from sira_cli.core.families import find_backbone, position_state, positions_kept
        from sira_cli.core.hooks import attached_hooks
        from sira_cli.core.upstream import last_logits_only, position_ids
        from sira_cli.methods.second_pass import check_prompts

        backbone, head = find_backbone(model), model.get_output_embeddings()
        layers, mlps = backbone.decoder_layers, find_mlps(model, self.name)
        first, last = (number * len(layers) // 32 for number in WINDOW)
        strength = self.for_task("caption").strength or 0.0
        outputs: dict[int, Tensor] = {}  # [B, d], the last row of each layer
        steering: dict[int, Tensor] = {}  # [B, 1, d], unit vectors; empty while v is measured
        state, measuring = position_state(model), False

        def keep(number: int, layer: Any, args: Any, output: Any) -> None:
            if measuring or first <= number <= last:  # a copy: a view would keep every row of the prompt
                outputs[number] = (output[0] if isinstance(output, tuple) else output)[:, -1].clone()

        def towards(number: int, x: Tensor) -> Tensor | None:
            if number not in steering:
                return None
            v = steering[number].to(x.device)
            return strength * (1 + F.cosine_similarity(x, -v, dim=-1).clamp(min=0)[..., None]) * v  # [B, q, d]

        def measure(model: Any, args: Any, kwargs: dict[str, Any]) -> None:
            nonlocal measuring
            ids = kwargs.get("input_ids", args[0] if args else None)
            if measuring or ids is None or ids.shape[1] == 1:
                return
            check_prompts(ids, prompts)
            steering.clear()
            measuring = True
            own = {name: value for name, value in kwargs.items() if name != CACHE}
            try:
                with positions_kept(state):
                    model(*args, **own | {"use_cache": False})
                    seen = dict(outputs)
                    where = position_ids(model, branch["input_ids"], dict(branch))
                    model(**branch, position_ids=where, use_cache=False, **last_logits_only(model))
            finally:
                measuring = False
            for number, output in outputs.items():
                steering[number] = F.normalize((seen[number] - output).float(), dim=-1)[:, None]

        def augment(model: Any, args: Any, output: Any) -> Any:
            if measuring:
                return output
            early = torch.stack([outputs[number].to(head.weight.device) for number in range(first, last + 1)])
            logits, z = head(early).float().mean(dim=0), output.logits[:, -1].float()  # [B, V]
            output.logits = (self.mix * logits.to(z.device) + (1 - self.mix) * z)[:, None]  # [B, 1, V]
            return output

        with attached_hooks(model, backbone.norm) as handles:
            for number, (layer, mlp) in enumerate(zip(layers, mlps, strict=True)):
                handles.append(mlp.register_forward_hook(steering_hook(partial(towards, number))))
                handles.append(layer.register_forward_hook(partial(keep, number)))
            handles.append(model.register_forward_pre_hook(measure, with_kwargs=True))
            handles.append(model.register_forward_hook(augment))
            yield
