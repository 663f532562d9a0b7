"""OPERA's search by the letter, slow and plain.

Every step runs the whole text of every beam with each of its candidates, and multiplies whole columns.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from itertools import groupby
from statistics import multimode
from typing import Any

import torch
from torch import Tensor

from sira_cli.core.reference import extend
from tests.support.tiny import SUPPRESS, Tiny

Scored = list[tuple[float, list[int]]]  # scores of texts, and their tokens


@dataclass
class State:
    """Beams before a step; `ended` is a copy of the scorer; then each beam's column, and the chosen (beam, token)."""

    beams: Scored
    ended: Scored
    trusted: list[int] = field(default_factory=list)
    chosen: list[tuple[int, int]] = field(default_factory=list)


class SlowOpera:
    """A search: `tokens` of its best text, the lengths that it went `back` to, and `phi`: the largest of each step."""

    @torch.no_grad()
    def __init__(self, case: Tiny, settings: dict[str, Any], steps: int, ends: tuple[int, ...] = ()):
        self.case, self.settings, self.steps, self.ends = case, settings, steps, ends
        self.model = copy.deepcopy(case.model)
        self.model.set_attn_implementation("eager")
        self.published = settings["length"] == "published"
        self.prompt = case.inputs["input_ids"].shape[1]
        # Tokens that the published scorer counts of a prompt: a picture is one.
        self.counted = sum(1 if on else len(list(run)) for on, run in groupby(case.image[0].tolist()))
        self.states = [State([(-1e9 * (n > 0), []) for n in range(settings["beams"])], [])]
        self.attempts: dict[int, int] = {}
        self.scorer: Scored = []  # changed in place
        self.back, self.phi = list[int](), list[float]()
        refused: dict[int, list[tuple[int, int]]] = {}
        done = False
        while not done:
            z, _ = self.run([tokens for _, tokens in self.states[-1].beams])
            scores = self.penalised(z)
            target = self.target()
            if target is not None:
                self.back.append(target)
                refused = {place: pairs for place, pairs in refused.items() if place <= target}
                refused.setdefault(target, []).extend(self.states[target].chosen)
                del self.states[target + 1 :]
                self.scorer = self.states[-1].ended  # no copy: one gone back to twice has what ended in between
                z, _ = self.run([tokens for _, tokens in self.states[-1].beams])
                for beam, token in refused[target]:
                    z[beam, token] = -math.inf
                scores = z.log_softmax(-1).tolist()
            done = self.step(scores)
        self.tokens = max(self.scorer, key=lambda text: text[0])[1]

    def run(self, texts: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Logits `[N, V]` behind texts of one length, and A `[N, n, n]`: the largest head, each row with sum 1."""
        rows = []
        for text in texts:
            inputs = dict(self.case.inputs)
            for token in text:
                inputs = extend(inputs, token, self.case.grown)
            rows.append(inputs)
        batch = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
        output = self.model(**batch, use_cache=False, output_attentions=True)
        largest = output.attentions[-1].float().max(dim=1).values
        return output.logits[:, -1].float(), largest / largest.sum(dim=-1, keepdim=True)

    def penalised(self, z: Tensor) -> list[list[float]]:
        """Log-probabilities `[K][V]` of the candidates; notes the largest phi, and each beam's column."""
        settings, now = self.settings, self.states[-1]
        r = len(now.beams[0][1]) + 1
        best = [sorted(range(len(row)), key=lambda v: -row[v])[: settings["candidates"]] for row in z.tolist()]
        pairs = [(number, token) for number, row in enumerate(best) for token in row]
        _, attention = self.run([[*now.beams[number][1], token] for number, token in pairs])
        scores, columns, largest = torch.full(z.shape, -math.inf), [list[int]() for _ in best], 0.0
        for (number, token), matrix in zip(pairs, attention, strict=True):
            w = (settings["scale"] * matrix[self.prompt :, self.prompt :].double()).tolist()
            phi = [math.prod(w[i][j] for i in range(j, r)) for j in range(r)]
            columns[number].append(phi.index(max(phi)))
            largest = max(largest, *phi)
            on_image = float(matrix[-1, : self.prompt][self.case.image[0]].sum())
            gain = on_image if r <= 10 else -settings["damping"] * max(phi)
            scores[number, token] = float(z[number, token]) + settings["penalty"] * gain
        self.phi.append(largest)
        now.trusted = [min(multimode(row)) for row in columns]
        return scores.log_softmax(-1).tolist()

    def target(self) -> int | None:
        trusted = [state.trusted for state in self.states]
        s = min(multimode(trusted[-1]))
        if s < 10 or any([*beam].count(s) <= self.settings["threshold"] for beam in zip(*trusted, strict=True)):
            return None
        for place in (s + 1, s):
            if self.attempts.get(place, 0) < self.settings["attempts"]:
                self.attempts[place] = self.attempts.get(place, 0) + 1
                return place
        return None

    def step(self, scores: list[list[float]]) -> bool:
        """One step of beam search with length penalty 1; True: it has ended."""
        now, beams, ended = self.states[-1], self.settings["beams"], self.scorer
        totals = [
            (now.beams[number][0] + score, number, token)
            for number, row in enumerate(scores)
            for token, score in enumerate(row)
            if token not in SUPPRESS
        ]
        totals.sort(key=lambda total: -total[0])
        length = len(now.beams[0][1]) + 1
        going: list[tuple[float, int, int]] = []
        for rank, (score, number, token) in enumerate(totals[: max(2, 1 + len(self.ends)) * beams]):
            if token in self.ends or length == self.steps:
                if rank < beams:
                    own = length - (self.published and token in self.ends)
                    ended.append((score / self.divisor(own), [*now.beams[number][1], token]))
            elif len(going) < beams:
                going.append((score, number, token))
        ended[:] = sorted(ended, key=lambda text: -text[0])[:beams]
        now.chosen = [(number, token) for _, number, token in going]
        self.states.append(State([(score, [*now.beams[n][1], token]) for score, n, token in going], [*ended]))
        hope = totals[0][0] if self.published or not going else going[0][0]
        return length == self.steps or (len(ended) == beams and hope / self.divisor(length) <= ended[-1][0])

    def divisor(self, length: int) -> int:
        return length + self.counted if self.published else length
