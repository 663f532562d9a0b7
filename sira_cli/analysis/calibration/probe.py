"""Accuracy of a linear probe on two classes, for many small sets of features at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

STEPS, HALVINGS = 100, 30  # at most
DONE = 1e-8  # largest change of a weight in the last step


def two_fold_accuracy(features: Tensor, labels: Tensor) -> Tensor:
    """Fit on each half of the rows, score on the other, and return the mean share of correct rows."""
    middle = len(labels) // 2
    halves = slice(0, middle), slice(middle, None)
    scores = []
    for tested, fitted in (halves, halves[::-1]):
        weights = fit(features[:, fitted], labels[fitted])
        said = _logits(_with_bias(features[:, tested]), weights) > 0  # [H, n]
        scores.append((said == labels[tested]).double().mean(dim=1))
    return torch.stack(scores).mean(dim=0)


def fit(features: Tensor, labels: Tensor) -> Tensor:
    """Fit logistic regressions: the sum of losses + |w|^2 / 2, the bias not penalised (scikit-learn's default, C = 1).

    Newton's method; a step that does not reduce the loss is halved until it does.
    """
    rows, truth = _with_bias(features), labels.to(features)  # [H, n, d + 1], [n]
    penalty = torch.ones(rows.shape[-1], dtype=rows.dtype)
    penalty[-1] = 0
    weights = rows.new_zeros(len(rows), rows.shape[-1])
    ridge = torch.diag(penalty + 1e-10)  # the bias alone may have no curvature left

    def loss(at: Tensor) -> Tensor:  # [H]
        logits = _logits(rows, at)
        fits = F.binary_cross_entropy_with_logits(logits, truth.expand_as(logits), reduction="none")
        return fits.sum(dim=1) + (penalty * at**2).sum(dim=1) / 2

    for _ in range(STEPS):
        likely = _logits(rows, weights).sigmoid()  # [H, n]
        gradient = ((likely - truth)[:, None] @ rows)[:, 0] + penalty * weights
        curvature = rows.mT @ ((likely * (1 - likely))[..., None] * rows) + ridge
        step = torch.linalg.solve(curvature, gradient)
        before = loss(weights)
        for _ in range(HALVINGS):
            up = loss(weights - step) > before * (1 + 1e-12)
            if not bool(up.any()):
                break
            step[up] /= 2
        weights = weights - step
        if float(step.abs().max()) < DONE:
            break
    return weights


def _with_bias(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones_like(features[..., :1])], dim=-1)


def _logits(rows: Tensor, weights: Tensor) -> Tensor:
    return (rows @ weights[..., None])[..., 0]
