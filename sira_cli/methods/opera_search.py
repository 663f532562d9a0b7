"""OPERA's rule for one picture: the penalty, the beams, and the rollback.

t tokens so far, K beams, C candidates per beam; r = t + 1 counts the candidate
W [r, r]          attention of the last layer among the text's rows, scaled
log phi_j         sum of log W_ij over rows i >= j: one more row at each step, so only the sums are kept
c = argmax phi    the column that a candidate trusts most
r <= 10           a candidate's logit gains penalty * (its attention on image tokens)
afterwards        it loses penalty * damping * phi_c
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import multimode

import torch
from torch import Tensor
from torch.nn import functional as F

EARLY = 10  # tokens that gain by image attention, and columns to which the search never goes back
ENDED = -1e9  # added to the score of an ended beam; also the score of beams that do not exist yet
LARGEST = math.log(torch.finfo(torch.float32).max)


@dataclass(frozen=True)
class Rule:
    """The settings of the method, documented at `sira_cli.methods.opera.Opera`."""

    beams: int
    candidates: int
    scale: float
    penalty: float
    damping: float
    threshold: int
    attempts: int
    length: str


@dataclass(frozen=True)
class Ending:
    """When texts end, as in transformers' beam search.

    Attributes:
        criteria: `[N, S + t]` ids -> `[N]` bool, whether each has ended.
        ends: `[E]` end tokens.
        kept: number of continuations ranked at each step: (end tokens + 1) K, so that K of them go on.
        length_penalty, early_stopping: from the generation config.
        longest: maximum number of new tokens.
    """

    criteria: Callable[[Tensor], Tensor]
    ends: Tensor
    kept: int
    length_penalty: float
    early_stopping: bool | str
    longest: int


@dataclass(frozen=True)
class Beams:
    """A picture's beams with t tokens each.

    Attributes:
        tokens: `[K, t]`.
        scores: `[K]` sums of log-probabilities.
        log_phi: `[K, t]` log phi of each column; between `step` and `settle` without the newest.
        finished: scores and tokens of at most K ended texts, best first.
        open: whether a running beam may still beat these.
    """

    tokens: Tensor
    scores: Tensor
    log_phi: Tensor
    finished: tuple[tuple[float, Tensor], ...] = ()
    open: bool = True


class Search:
    """The search for one picture's text.

    Attributes:
        beams: the current beams.
        done: whether no text can beat the best ended one.
        longest: largest length of the beams so far, in tokens.
    """

    def __init__(self, rule: Rule, prompt: Tensor, image: Tensor, padding: int, ending: Ending) -> None:
        """Begin with an empty text.

        Args:
            rule: rule of the method.
            prompt: `[S]` ids, left-padded.
            image: `[S]` bool, its image tokens.
            padding: number of padding tokens of the prompt.
            ending: when texts end.
        """
        self.beams = Beams(
            tokens=prompt.new_zeros((rule.beams, 0)),
            scores=torch.tensor([0.0] + [ENDED] * (rule.beams - 1), device=prompt.device),
            log_phi=torch.zeros((rule.beams, 0), device=prompt.device),
        )
        self.done, self.longest = False, 0
        self._rule, self._prompt, self._image, self._ending = rule, prompt, image, ending
        self._published = rule.length == "published"
        # In the published code, LLaVA's prompts have one placeholder per picture when `generate` gets them.
        rest = int((image[1:] & image[:-1]).sum())  # image tokens that follow one
        self._counted = len(prompt) - padding - rest if self._published else 0
        # One entry per step since the beginning of the text; a rollback shortens them.
        self._before: list[Beams] = []
        self._trusted: list[list[int]] = []  # per beam, the column that most of its candidates trust most
        self._chosen: list[Tensor] = []  # [K] parent * V + token
        self._refused: dict[int, Tensor] = {}  # by length, all tokens chosen there before
        self._attempts: Counter[int] = Counter()
        self._returned: int | None = None  # the length that the search last went back to

    @property
    def length(self) -> int:
        """Tokens of each beam, t."""
        return self.beams.tokens.shape[1]

    def log_phi(self, attention: Tensor) -> Tensor:
        """Return log phi of each column with the next row: `attention [K, C, S + t + 1]` -> `[K, C, t + 1]`."""
        row = attention[:, :, len(self._prompt) :] * self._rule.scale  # [K, C, t + 1]
        return F.pad(self.beams.log_phi, (0, 1))[:, None] + row.log()

    def weigh(self, logits: Tensor, candidates: Tensor, attention: Tensor) -> Tensor:
        """Return the log-probabilities of the candidates under the penalty; -inf for all other tokens.

        Args:
            logits: `[K, V]` for the next token.
            candidates: `[K, C]` tokens.
            attention: `[K, C, S + t + 1]` of each candidate's row, as shares of 1.

        Returns:
            `[K, V]`.
        """
        largest, column = self.log_phi(attention).max(dim=-1)  # [K, C], phi_c and c
        self._trusted.append([min(multimode(row)) for row in column.tolist()])
        if self.length < EARLY:
            gain = attention[:, :, : len(self._prompt)][:, :, self._image].sum(dim=-1)  # [K, C]
        else:
            gain = -self._rule.damping * largest.clamp(max=LARGEST).exp()
        weighed = logits.gather(1, candidates) + self._rule.penalty * gain
        return torch.full_like(logits, -torch.inf).scatter(1, candidates, weighed).log_softmax(dim=-1)

    def way_back(self) -> int | None:
        """Return the length to go back to, if every beam has trusted one column for too long; else None."""
        trusted = min(multimode(self._trusted[-1]))
        counts = [[column == trusted for column in beam].count(True) for beam in zip(*self._trusted, strict=True)]
        if trusted < EARLY or min(counts) <= self._rule.threshold:
            return None
        for length in (trusted + 1, trusted):
            if self._attempts[length] < self._rule.attempts:
                self._attempts[length] += 1
                return length
        return None

    def go_back(self, length: int) -> None:
        """Roll back to `length` tokens and ban the tokens chosen there.

        Texts that ended since an earlier return to that place stay: the published code does not copy its scorer then.
        """
        if self._returned is not None:
            before = self._before[self._returned]
            self._before[self._returned] = replace(before, finished=self.beams.finished)
        self._returned = length
        chosen = self._chosen[length]
        self.beams = self._before[length]
        del self._before[length:], self._chosen[length:], self._trusted[length + 1 :]
        # Refusals after this length belong to beams that no longer exist.
        self._refused = {place: refused for place, refused in self._refused.items() if place <= length}
        self._refused[length] = torch.cat([self._refused.get(length, chosen[:0]), chosen])

    def choose_again(self, logits: Tensor) -> Tensor:
        """Return log-probabilities `[K, V]` of all tokens but the refused ones, without a penalty."""
        refused = self._refused[self.length]
        return logits.flatten().index_fill(0, refused, -torch.inf).view_as(logits).log_softmax(dim=-1)

    def step(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Take the next token of every beam, as in transformers' beam search.

        Args:
            log_probs: `[K, V]`, processed.

        Returns:
            parents, tokens: `[K]` each. `settle` must follow, unless the search is done.
        """
        now, ending, beams = self.beams, self._ending, self._rule.beams
        totals = (log_probs + now.scores[:, None]).flatten()  # [K V]
        scores, flat = totals.topk(min(ending.kept, len(totals)))  # [N]
        parents, tokens = flat // log_probs.shape[1], flat % log_probs.shape[1]
        longer = torch.cat([now.tokens[parents], tokens[:, None]], dim=1)  # [N, t + 1]
        ended = ending.criteria(torch.cat([self._prompt.expand(len(flat), -1), longer], dim=1))  # [N]
        running, best = (scores + ended * ENDED).topk(beams)  # [K]
        self._before.append(now)
        self._chosen.append(flat[best])
        followed = now.log_phi[parents[best]]
        self.beams = replace(now, tokens=longer[best], scores=running, log_phi=followed)
        self._finish(scores[:beams], longer[:beams], ended[:beams])
        self.longest = max(self.longest, self.length)
        full = len(self.beams.finished) == beams
        self.done = not self.beams.open or (full and ending.early_stopping is True) or bool(ended.all())
        return parents[best], tokens[best]

    def _finish(self, scores: Tensor, tokens: Tensor, ended: Tensor) -> None:
        """Keep the best ended texts: `[K]`, `[K, t]`, `[K]` of the best continuations."""
        now, ending, beams = self.beams, self._ending, self._rule.beams
        finished = list(now.finished)
        if now.open and not (len(finished) == beams and ending.early_stopping is True):
            without = torch.isin(tokens[:, -1], ending.ends) * self._published  # [K], an end token that does not count
            final = (scores / (self._counted + self.length - without.int()) ** ending.length_penalty).tolist()
            finished += [(final[row], tokens[row]) for row in ended.nonzero().flatten().tolist()]
        finished = sorted(finished, key=lambda text: -text[0])[:beams]
        hoped = ending.longest if ending.early_stopping == "never" and ending.length_penalty > 0 else self.length
        # The published search hopes for the best continuation, even if it has just ended.
        hopeful = scores[0] if self._published else now.scores[0]
        best = float(hopeful / (self._counted + hoped) ** ending.length_penalty)
        worst = finished[-1][0] if len(finished) == beams else ENDED
        self.beams = replace(now, finished=tuple(finished), open=now.open and best > worst)

    def settle(self, attention: Tensor) -> None:
        """Take in the attention of the beams' newest tokens, `[K, S + t]`."""
        self.beams = replace(self.beams, log_phi=self.log_phi(attention[:, None])[:, 0])

    def text(self) -> Tensor:
        """Return the tokens of the best text, `[T]`."""
        return self.beams.finished[0][1] if self.beams.finished else self.beams.tokens[0]
