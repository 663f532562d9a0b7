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

    from sira_cli.core.arguments import Kwargs

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

    def check_model(self, model: Any, config: SiraConfig) -> None:
        """Check that each layer has an MLP to steer."""
        find_mlps(model, self.name)

    @contextmanager
    def attach(self, model: Any, config: SiraConfig, prompts: Tensor, branch: Inputs) -> Iterator[None]:
        """Put hooks on layers, MLPs and the model; a prompt first runs twice more, with and without its image."""
        from sira_cli.core.families import find_backbone
        from sira_cli.core.hooks import attached_hooks

        backbone = find_backbone(model)
        layers = backbone.decoder_layers
        steering = _Steering(self.for_task("caption"), model, len(layers), prompts, branch)
        with attached_hooks(model, backbone.norm) as handles:
            for number, (layer, mlp) in enumerate(zip(layers, find_mlps(model, self.name), strict=True)):
                handles.append(mlp.register_forward_hook(steering_hook(partial(steering.towards, number))))
                handles.append(layer.register_forward_hook(partial(steering.keep, number)))
            handles.append(model.register_forward_pre_hook(steering.measure, with_kwargs=True))
            handles.append(model.register_forward_hook(steering.augment))
            yield


class _Steering:
    """The hooks of one block, and what they measure: the changes of the running prompts by their pictures."""

    def __init__(
        self,
        method: Vista,
        model: Any,
        layers: int,
        prompts: Tensor,
        branch: Inputs,
    ) -> None:
        from sira_cli.core.families import position_state

        self._strength = method.strength or 0.0
        self._mix = method.mix
        self._prompts = prompts
        self._branch = branch
        self._head = model.get_output_embeddings()
        self._state = position_state(model)
        first, last = (number * layers // 32 for number in WINDOW)
        self._late = range(first, last + 1)  # layers whose logits are mixed in
        self._outputs: dict[int, Tensor] = {}  # [B, d], the last row of each layer
        self._directions: dict[int, Tensor] = {}  # [B, 1, d], unit vectors v; empty while they are measured
        self._measuring = False

    def keep(self, number: int, layer: Any, args: Any, output: Any) -> None:
        """After a layer: keep its last row."""
        if self._measuring or number in self._late:
            rows = output[0] if isinstance(output, tuple) else output
            self._outputs[number] = rows[:, -1].clone()  # a view would keep every row of the prompt

    def towards(self, number: int, x: Tensor) -> Tensor | None:
        """Return the shift of the unit vectors of an MLP's output x, `[B, q, d]`; None without a direction."""
        from torch.nn import functional as F

        if number not in self._directions:
            return None
        v = self._directions[number].to(x.device)
        against = F.cosine_similarity(x, -v, dim=-1).clamp(min=0)  # [B, q]
        return self._strength * (1 + against[..., None]) * v

    def measure(self, model: Any, args: Any, kwargs: Kwargs) -> None:
        """Before a prompt: run it with and without its image, and keep each layer's direction from one to the other."""
        from torch.nn import functional as F

        from sira_cli.core.arguments import CACHE
        from sira_cli.core.families import positions_kept
        from sira_cli.core.upstream import last_logits_only, position_ids
        from sira_cli.methods.second_pass import check_prompts

        ids = kwargs.get("input_ids", args[0] if args else None)
        if self._measuring or ids is None or ids.shape[1] == 1:
            return
        check_prompts(ids, self._prompts)
        self._directions.clear()
        self._measuring = True
        without_cache = {name: value for name, value in kwargs.items() if name != CACHE}
        branch = self._branch
        try:
            with positions_kept(self._state):
                model(*args, **without_cache | {"use_cache": False})
                with_image = dict(self._outputs)
                positions = position_ids(model, branch["input_ids"], dict(branch))
                model(**branch, position_ids=positions, use_cache=False, **last_logits_only(model))
        finally:
            self._measuring = False
        for number, output in self._outputs.items():
            change = (with_image[number] - output).float()
            self._directions[number] = F.normalize(change, dim=-1)[:, None]

    def augment(self, model: Any, args: Any, output: Any) -> Any:
        """After the model: mix in the late layers' logits."""
        import torch

        if self._measuring:
            return output
        rows = [self._outputs[number].to(self._head.weight.device) for number in self._late]
        early = self._head(torch.stack(rows)).float().mean(dim=0)  # [B, V]
        z = output.logits[:, -1].float()  # [B, V]
        output.logits = (self._mix * early.to(z.device) + (1 - self._mix) * z)[:, None]  # [B, 1, V]
        return output
