"""Which K for a model that nobody has measured? A rule that needs pictures, but no labels.

The model writes its own caption of each picture, greedily and without SIRA. With this text forced on both streams, for
every K and at every token,

    KL(K)    = KL(p_full || p_cf), in nats
    drift(K) = 1 - cos(h_full, h_cf), mean over layers b..L-1, b = L - K (the paper's Figure 4c)

are averaged over the tokens of a caption, then over pictures. The first token alone would say nothing: captions begin
alike, whatever the picture shows.

The paper asks two things of the boundary b: a shared prefix that is deep enough, and enough layers behind it to remove
what the picture adds. So the rule takes the deepest prefix whose CF stream has lost nearly all that any can lose:

    K = the least with KL(K) >= SHARE max KL
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sira_cli.analysis.calibration.batches import each_picture
from sira_cli.analysis.calibration.captions import caption_tokens, plain, prepared
from sira_cli.analysis.drift.measure import cosine_distance
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import find_backbone
from sira_cli.core.forcing import score
from sira_cli.core.rules import kl_divergence
from sira_cli.errors import PictureError, SiraError
from sira_cli.models.lvlm import Lvlm
from sira_cli.pictures.names import one_line
from sira_cli.pictures.picture import OpenedPicture, Picture

SHARE = 0.9  # of the largest KL; ours, and no setting: a rule that one adjusts needs labels


@dataclass(frozen=True)
class Divergences:
    """How far the CF stream of each K strays from the full one while a caption is written, for K = 1, 2, ...

    Attributes:
        kl: KL(full || CF), in nats, mean over tokens.
        drift: 1 - cosine similarity in the late layers, mean over layers and tokens.
        tokens: how many the caption has.
    """

    kl: tuple[float, ...]
    drift: tuple[float, ...]
    tokens: int


def largest_k(lvlm: Lvlm) -> int:
    """Return the largest K that the model allows."""
    return lvlm.layers - find_backbone(lvlm.model).first_boundary


def measure_divergence(
    lvlm: Lvlm, pictures: Iterable[Picture], batch_size: int = 1
) -> Iterator[tuple[Picture, Divergences | PictureError]]:
    """Yield every picture with what was measured, or with what is wrong with it; the others go on.

    A picture costs its caption, and one prefill of prompt and caption per K.

    Args:
        lvlm: the loaded model; its preset's K plays no part.
        pictures: a few dozen.
        batch_size: pictures measured together.

    Raises:
        SiraError: about the model or the settings.
    """
    speaker = plain(lvlm)
    ks = range(1, largest_k(lvlm) + 1)

    def work(opened: Sequence[OpenedPicture]) -> list[Divergences]:
        inputs = prepared(speaker, opened)
        texts = caption_tokens(speaker, inputs)
        found = [text_divergence(speaker.model, replace(speaker.sira, k=k, k_fraction=None), inputs, texts) for k in ks]
        kl, drift = (torch.stack(each, dim=1) for each in zip(*found, strict=True))  # [B, K]
        for row, picture in enumerate(opened):
            if not bool(kl[row].isfinite().all() and drift[row].isfinite().all()):
                raise PictureError(
                    f"{one_line(picture.name)}: the model computes numbers out of range of {lvlm.model.dtype}: "
                    "try another dtype"
                )
        return [
            Divergences(tuple(kl[row].tolist()), tuple(drift[row].tolist()), len(text))
            for row, text in enumerate(texts)
        ]

    yield from each_picture(pictures, work, batch_size)


def choose_k(kl: Sequence[float]) -> int:
    """Return the K of the rule.

    Args:
        kl: KL(K) for K = 1, 2, ...

    Raises:
        SiraError: no K changes anything: the captions do not depend on the picture.
    """
    most = max(kl)
    if most < 1e-6:
        raise SiraError("no K changes what the model says about these pictures: it does not look at them")
    return 1 + next(index for index, value in enumerate(kl) if value >= SHARE * most)


def text_divergence(
    model: Any, config: SiraConfig, inputs: Any, texts: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Return KL and late drift while given texts are read, float64 `[B]` each, means over each text's tokens.

    Args:
        model, config, inputs, texts: as for `sira_cli.core.forcing.score`.
    """
    longest = max(map(len, texts))  # N
    width = inputs["input_ids"].shape[1] + longest - 1  # rows of the full stream: prompt and text but its last token
    with _recorded_drift(model, config, width, longest) as layers:
        kl = [
            kl_divergence(step.full.log_softmax(-1), step.cf.log_softmax(-1)).cpu()  # [B]
            for step in score(model, config, inputs, texts)
        ]
    own = torch.tensor([[token >= longest - len(text) for token in range(longest)] for text in texts])  # [B, N]
    tokens = own.sum(dim=1)
    both = torch.stack(kl, dim=1), torch.stack(layers).double().mean(dim=0)  # [B, N] each
    mean_kl, mean_drift = (torch.where(own, each, 0.0).sum(dim=1) / tokens for each in both)
    return mean_kl, mean_drift


@contextmanager
def _recorded_drift(model: Any, config: SiraConfig, width: int, rows: int) -> Iterator[list[Tensor]]:
    """Yield a list that gets, per late layer, how far the last rows of both streams are apart, `[B, rows]`."""
    layers: list[Tensor] = []

    def record(layer: Any, args: Any, hidden: Tensor) -> None:  # [B, width + T, d], see core/fork.py
        layers.append(cosine_distance(hidden[:, width - rows : width], hidden[:, -rows:]).cpu())

    handles: list[torch.utils.hooks.RemovableHandle] = []
    try:
        decoder_layers = find_backbone(model).decoder_layers
        for layer in decoder_layers[-config.layers_after_fork(len(decoder_layers)) :]:
            handles.append(layer.register_forward_hook(record))
        yield layers
    finally:
        for handle in handles:
            handle.remove()
