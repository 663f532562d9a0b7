"""OPERA by the letter, slow and plain: no cache, every attention matrix of the last layer, beams as Python lists.

One unpadded prompt. Every step runs the whole text of every beam with each of its candidates, eagerly, and multiplies
whole columns. Going back is a list of states that gets shorter. It shares no code with the package.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from sira_cli.core.reference import extend
from tests.support.tiny import SUPPRESS, Tiny

NEVER = -1e9
Scored = list[tuple[float, list[int]]]  # scores of texts, and their tokens


@dataclass
class State:
    """Beams before a step; `ended` is a copy of the scorer; then each beam's column, and the chosen (beam, token)."""

    beams: Scored
    ended: Scored
    trusted: list[int] = field(default_factory=list)
    chosen: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Text:
    """`tokens` of the best text, the lengths that the search went back to, and `phi`: the largest phi of each step."""

    tokens: list[int]
    back: list[int]
    phi: list[float]


class SlowOpera:
    def __init__(self, case: Tiny, settings: dict[str, Any], ends: tuple[int, ...] = ()):
        self.case, self.settings, self.ends = case, settings, ends
        self.model = copy.deepcopy(case.model)
        self.model.set_attn_implementation("eager")
        self.published = settings["length"] == "published"
        self.prompt = case.inputs["input_ids"].shape[1]
        # Tokens that the published scorer counts of a prompt: a picture is one.
        self.counted = sum(1 if on else len(list(run)) for on, run in groupby(case.image[0].tolist()))

    @torch.no_grad()
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

    def decode(self, steps: int) -> Text:
        states = [State([(0.0 if n == 0 else NEVER, []) for n in range(self.settings["beams"])], [])]
        attempts: dict[int, int] = {}
        refused: dict[int, list[tuple[int, int]]] = {}
        scorer: Scored = []  # changed in place
        back, phis = [], []
        while True:
            now = states[-1]
            z, _ = self.run([tokens for _, tokens in now.beams])
            scores, phi = self.penalised(now, z)
            phis.append(phi)
            target = self.target([state.trusted for state in states], attempts)
            if target is not None:
                back.append(target)
                attempts[target] = attempts.get(target, 0) + 1
                refused = {place: pairs for place, pairs in refused.items() if place <= target}
                refused.setdefault(target, []).extend(states[target].chosen)
                del states[target + 1 :]
                now = states[-1]
                scorer = now.ended  # not a copy: a state that is gone back to twice has what ended in between
                z, _ = self.run([tokens for _, tokens in now.beams])
                for beam, token in refused[target]:
                    z[beam, token] = -math.inf
                scores = z.log_softmax(-1).tolist()
            if self.step(states, scorer, scores, steps):
                return Text(max(scorer, key=lambda text: text[0])[1], back, phis)

    def penalised(self, now: State, z: Tensor) -> tuple[list[list[float]], float]:
        """Log-probabilities `[K][V]` of the candidates, and the largest phi; notes each beam's column."""
        settings, r = self.settings, len(now.beams[0][1]) + 1
        best = [sorted(range(len(row)), key=lambda v: -row[v])[: settings["candidates"]] for row in z.tolist()]
        pairs = [(number, token) for number, row in enumerate(best) for token in row]
        _, attention = self.run([[*now.beams[number][1], token] for number, token in pairs])
        scores = torch.full(z.shape, -math.inf)
        columns: list[list[int]] = [[] for _ in best]
        largest = 0.0
        for (number, token), matrix in zip(pairs, attention, strict=True):
            w = (settings["scale"] * matrix[self.prompt :, self.prompt :].double()).tolist()
            phi = [math.prod(w[i][j] for i in range(j, r)) for j in range(r)]
            c = phi.index(max(phi))
            columns[number].append(c)
            largest = max(largest, phi[c])
            on_image = float(matrix[-1, : self.prompt][self.case.image[0]].sum())
            gain = on_image if r <= 10 else -settings["damping"] * phi[c]
            scores[number, token] = float(z[number, token]) + settings["penalty"] * gain
        now.trusted = [mode(row) for row in columns]
        return scores.log_softmax(-1).tolist(), largest

    def target(self, trusted: list[list[int]], attempts: dict[int, int]) -> int | None:
        s = mode(trusted[-1])
        if s < 10 or any([*beam].count(s) <= self.settings["threshold"] for beam in zip(*trusted, strict=True)):
            return None
        return next((place for place in (s + 1, s) if attempts.get(place, 0) < self.settings["attempts"]), None)

    def step(self, states: list[State], ended: Scored, scores: list[list[float]], steps: int) -> bool:
        """One step of beam search with length penalty 1; True: it has ended."""
        now, beams = states[-1], self.settings["beams"]
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
            if token in self.ends or length == steps:
                if rank < beams:
                    own = length - (self.published and token in self.ends)
                    ended.append((score / self.divisor(own), [*now.beams[number][1], token]))
            elif len(going) < beams:
                going.append((score, number, token))
        ended[:] = sorted(ended, key=lambda text: -text[0])[:beams]
        now.chosen = [(number, token) for _, number, token in going]
        states.append(State([(score, [*now.beams[n][1], token]) for score, n, token in going], [*ended]))
        if length == steps:
            return True
        hope = totals[0][0] if self.published else going[0][0]
        return len(ended) == beams and hope / self.divisor(length) <= ended[-1][0]

    def divisor(self, length: int) -> int:
        return length + self.counted if self.published else length


def mode(values: list[int]) -> int:
    return max(sorted(set(values)), key=values.count)
