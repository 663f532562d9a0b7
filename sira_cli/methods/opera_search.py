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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import multimode
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from sira_cli.core.upstream import end_and_pad
from sira_cli.errors import SettingsError
from sira_cli.methods.opera_passes import Ahead, Passes

EARLY = 10  # tokens that gain by image attention, and columns to which the search never goes back
ENDED = -1e9  # added to the score of an ended beam; also the score of beams that do not exist yet
LARGEST = math.log(torch.finfo(torch.float32).max)


@dataclass(frozen=True)
class Ending:
    """When texts end, as in transformers' beam search."""

    criteria: Callable[[Tensor], Tensor]  # [N, S + t] ids -> [N] bool, whether each has ended
    ends: Tensor  # [E] end tokens
    kept: int  # number of continuations ranked at each step: (end tokens + 1) K, so that K of them go on
    length_penalty: float  # as in the generation config
    early_stopping: bool | str
    longest: int  # maximum number of new tokens


@dataclass(frozen=True)
class Beams:
    """A picture's beams with t tokens each."""

    tokens: Tensor  # [K, t]
    scores: Tensor  # [K] sums of log-probabilities
    log_phi: Tensor  # [K, t] log phi of each column; between `step` and `settle` without the newest
    finished: tuple[tuple[float, Tensor], ...] = ()  # scores and tokens of at most K ended texts, best first
    open: bool = True  # whether a running beam may still beat these


class Search:
    """The search for one picture's text."""

    def __init__(
        self,
        rule: Any,
        prompt: Tensor,
        image: Tensor,
        padding: int,
        ending: Ending,
    ) -> None:
        """Begin with an empty text.

        Args:
            rule: the `Opera`.
            prompt: `[S]` ids.
            image: `[S]` bool, P_img.
            padding: number of padding tokens in the prompt.
            ending: when texts end.
        """
        self.beams = Beams(
            tokens=prompt.new_zeros((rule.beams, 0)),
            scores=torch.tensor([0.0] + [ENDED] * (rule.beams - 1), device=prompt.device),
            log_phi=torch.zeros((rule.beams, 0), device=prompt.device),
        )
        self.done = False  # whether no text can beat the best ended one
        self.longest = 0  # largest length so far
        self._rule = rule
        self._prompt = prompt
        self._image = image
        self._ending = ending
        self._published = rule.length == "published"
        # In the published code, LLaVA's prompts have one placeholder per picture when `generate` gets them.
        rest = int((image[1:] & image[:-1]).sum())  # image tokens that follow one
        self._counted = 0  # tokens of the prompt that count as the text's
        if self._published:
            self._counted = len(prompt) - padding - rest
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
        row: Tensor = attention[:, :, len(self._prompt) :] * self._rule.scale  # [K, C, t + 1]
        return F.pad(self.beams.log_phi, (0, 1))[:, None] + row.log()

    def weigh(self, logits: Tensor, candidates: Tensor, attention: Tensor) -> Tensor:
        """Return log-probabilities of the candidates under the penalty, `[K, V]`; -inf for all other tokens.

        Args:
            logits: `[K, V]`.
            candidates: `[K, C]` tokens.
            attention: `[K, C, S + t + 1]` of each candidate's row.
        """
        largest, column = self.log_phi(attention).max(dim=-1)  # [K, C], phi_c and c
        self._trusted.append([min(multimode(row)) for row in column.tolist()])
        if self.length < EARLY:
            on_prompt = attention[:, :, : len(self._prompt)]
            gain = on_prompt[:, :, self._image].sum(dim=-1)  # [K, C]
        else:
            gain = -self._rule.damping * largest.clamp(max=LARGEST).exp()
        weighed = logits.gather(1, candidates) + self._rule.penalty * gain
        scores = torch.full_like(logits, -torch.inf).scatter(1, candidates, weighed)
        return scores.log_softmax(dim=-1)

    def way_back(self) -> int | None:
        """Return the length to go back to, if every beam has trusted one column for too long; else None."""
        trusted = min(multimode(self._trusted[-1]))
        counts = [beam.count(trusted) for beam in zip(*self._trusted, strict=True)]
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
        refused_before = self._refused.get(length, chosen[:0])
        self._refused[length] = torch.cat([refused_before, chosen])

    def choose_again(self, logits: Tensor) -> Tensor:
        """Return log-probabilities `[K, V]` of all tokens but the refused ones, without a penalty."""
        refused = self._refused[self.length]
        scores = logits.flatten().index_fill(0, refused, -torch.inf)
        return scores.view_as(logits).log_softmax(dim=-1)

    def step(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Take the next token of every beam, as in transformers' beam search; unless done, `settle` must follow.

        Args:
            log_probs: `[K, V]`.

        Returns:
            The beams that the new ones continue, and their tokens, `[K]` each.
        """
        now = self.beams
        ending = self._ending
        beams = self._rule.beams
        totals = (log_probs + now.scores[:, None]).flatten()  # [K V]
        scores, flat = totals.topk(min(ending.kept, len(totals)))  # [N]
        parents = flat // log_probs.shape[1]
        tokens = flat % log_probs.shape[1]
        longer = torch.cat([now.tokens[parents], tokens[:, None]], dim=1)  # [N, t + 1]
        prompts = self._prompt.expand(len(flat), -1)
        ended = ending.criteria(torch.cat([prompts, longer], dim=1))  # [N]
        running, best = (scores + ended * ENDED).topk(beams)  # [K]
        self._before.append(now)
        self._chosen.append(flat[best])
        followed = now.log_phi[parents[best]]
        self.beams = replace(now, tokens=longer[best], scores=running, log_phi=followed)
        self._finish(scores[:beams], longer[:beams], ended[:beams])
        self.longest = max(self.longest, self.length)
        enough = ending.early_stopping is True and len(self.beams.finished) == beams
        self.done = enough or not self.beams.open or bool(ended.all())
        return parents[best], tokens[best]

    def _finish(self, scores: Tensor, tokens: Tensor, ended: Tensor) -> None:
        """Keep the best ended texts: `[K]`, `[K, t]`, `[K]` of the best continuations."""
        now = self.beams
        ending = self._ending
        beams = self._rule.beams
        finished = list(now.finished)
        if now.open and not (len(finished) == beams and ending.early_stopping is True):
            lengths = torch.full_like(tokens[:, -1], self._counted + self.length)  # [K]
            if self._published:  # an end token does not count
                lengths -= torch.isin(tokens[:, -1], ending.ends).int()
            final = (scores / lengths**ending.length_penalty).tolist()
            for row in ended.nonzero().flatten().tolist():
                finished.append((final[row], tokens[row]))
        finished = sorted(finished, key=lambda text: -text[0])[:beams]
        hoped = self.length
        if ending.early_stopping == "never" and ending.length_penalty > 0:
            hoped = ending.longest
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
        if not self.beams.finished:
            return self.beams.tokens[0]
        _, tokens = self.beams.finished[0]
        return tokens


class OperaRun:
    """B running searches."""

    def __init__(self, rule: Any, passes: Passes, image: Tensor, streamer: BaseStreamer | None) -> None:
        """Prepare B searches; `image [B, S]` bool."""
        self.passes = passes  # the model, and the cache of all beams
        self.rollbacks = 0  # number of rollbacks of all searches
        self._rule = rule
        self._image = image
        self._streamer = streamer
        self._streamed = 0

    def decode(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Tensor:
        """Decode B prompts `[B, S]`; `generate` calls this with its prepared arguments, and returns its result."""
        config: Any = generation_config  # its attributes are not declared
        if config.do_sample or len(input_ids) != len(self._image):
            raise SettingsError(
                "method opera has beams of its own: leave out do_sample, num_beams and num_return_sequences"
            )
        if self._streamer is not None:
            self._streamer.put(input_ids.cpu())
        ends, pad = end_and_pad(generation_config)
        ending = Ending(
            criteria=lambda ids: stopping_criteria(ids, None),
            ends=input_ids.new_tensor(ends),
            kept=max(2, 1 + len(ends)) * self._rule.beams,
            length_penalty=config.length_penalty,
            early_stopping=config.early_stopping,
            longest=config.max_length - input_ids.shape[1],
        )
        mask = kwargs.get("attention_mask")
        padding = [0] * len(input_ids)
        if mask is not None:
            padding = (mask == 0).sum(dim=-1).tolist()
        searches = []
        for prompt, image, count in zip(input_ids, self._image, padding, strict=True):
            searches.append(Search(self._rule, prompt, image, count, ending))
        self._processors = logits_processor
        self._prompts = input_ids
        self._filler = ends[0] if ends else 0
        if pad is not None:
            self._filler = int(pad)
        self._search(searches, self.passes.prompt(input_ids, kwargs))
        if self._streamer is not None:
            self._streamer.end()
        texts = [search.text() for search in searches]
        padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=self._filler)  # [B, T]
        return torch.cat([input_ids, padded], dim=1)

    def _search(self, searches: list[Search], logits: Tensor) -> None:
        """Search until all are done, from the logits of the first token on, `[B K, V]`."""
        running = dict(enumerate(searches))  # by row of the prompts; R = K of them each
        while True:
            candidates = logits.topk(min(self._rule.candidates, logits.shape[1])).indices  # [R, C]
            ahead = self.passes.look_ahead(candidates)
            log_probs = torch.empty_like(logits)
            for rows, search in self._rows(running):
                attention = ahead.attention[rows, :, -(self._prompts.shape[1] + search.length + 1) :]
                log_probs[rows] = search.weigh(logits[rows], candidates[rows], attention)
            for rows, search in self._rows(running):
                length = search.length
                shorter = search.way_back()
                if shorter is not None:
                    self.rollbacks += 1
                    search.go_back(shorter)
                    longest = max(other.length for other in running.values())
                    logits[rows] = self.passes.go_back(rows, length, search.beams.tokens, longest)
                    log_probs[rows] = search.choose_again(logits[rows])
                    candidates[rows] = -1  # no token was looked ahead
            log_probs = self._processed(running, log_probs, logits)
            parents = []
            tokens = []
            for rows, search in self._rows(running):
                parent, token = search.step(log_probs[rows])
                if not search.done:
                    parents.append(parent + rows.start)
                    tokens.append(token)
            self._stream(searches)
            running = {number: search for number, search in running.items() if not search.done}
            if not running:
                return
            logits = self._take(running, ahead, candidates, torch.cat(parents), torch.cat(tokens))

    def _take(
        self,
        running: dict[int, Search],
        ahead: Ahead,
        candidates: Tensor,
        parents: Tensor,
        tokens: Tensor,
    ) -> Tensor:
        """Update the model's beams from the searches, and return the logits of the next token, `[R, V]`.

        If all tokens are candidates, the look-ahead pass has the logits; else they need another pass.

        Args:
            running: searches that go on.
            ahead: the look-ahead pass over `candidates [R, C]`.
            parents, tokens: `[R]`, the beams that are continued, and by which tokens.
        """
        length = max(search.length for search in running.values()) - 1
        hits = candidates[parents] == tokens[:, None]  # [R, C]
        places = hits.int().argmax(dim=1)  # [R]
        if not bool(hits.any(dim=1).all()):
            self.passes.follow(parents, length)
            ahead = self.passes.look_ahead(tokens[:, None])
            parents = torch.arange(len(tokens), device=tokens.device)
            places = torch.zeros_like(tokens)
        self.passes.keep(ahead, parents, places, length)
        attention = ahead.attention[parents, places]  # [R, N + 1]
        for rows, search in self._rows(running):
            search.settle(attention[rows, -(self._prompts.shape[1] + search.length) :])
        return ahead.logits[parents, places].float()

    def _rows(self, running: dict[int, Search]) -> Iterator[tuple[slice, Search]]:
        """Yield each search with the rows of its beams in the model."""
        beams = self._rule.beams
        for number, search in enumerate(running.values()):
            yield slice(number * beams, (number + 1) * beams), search

    def _processed(self, running: dict[int, Search], log_probs: Tensor, logits: Tensor) -> Tensor:
        """Apply the logits processors; if they leave no candidate, a beam chooses from all tokens. `[R, V]` each."""
        processed = self._process(running, log_probs)
        nothing_left = (processed == -torch.inf).all(dim=-1, keepdim=True)  # [R, 1]
        if not bool(nothing_left.any()):
            return processed
        unweighed = self._process(running, logits.log_softmax(dim=-1))
        return torch.where(nothing_left, unweighed, processed)

    def _process(self, running: dict[int, Search], log_probs: Tensor) -> Tensor:
        """Apply the processors to one beam of each picture at a time, and to pictures of one length together.

        Processors were made for B rows, and may depend on each row's padding. So rows of the other pictures are
        included, with arbitrary tokens after their prompts.
        """
        if not self._processors:
            return log_probs
        processed = torch.empty_like(log_probs)
        for length in {search.length for search in running.values()}:
            ids = F.pad(self._prompts, (0, length), value=self._filler)  # [B, S + t]
            scores = log_probs.new_zeros((len(ids), log_probs.shape[1]))  # [B, V]
            pictures = []  # of this length
            starts = []  # their first rows in the model
            for number, (rows, search) in zip(running, self._rows(running), strict=True):
                if search.length == length:
                    pictures.append(number)
                    starts.append(rows.start)
            first = torch.tensor(starts, device=ids.device)
            for beam in range(self._rule.beams):
                texts = [running[number].beams.tokens[beam] for number in pictures]
                ids[pictures, self._prompts.shape[1] :] = torch.stack(texts)
                scores[pictures] = log_probs[first + beam]
                processed[first + beam] = self._processors(ids, scores)[pictures]  # type: ignore[arg-type] # LongTensor
        return processed

    def _stream(self, searches: list[Search]) -> None:
        """Tell the streamer about each new length that all texts have reached."""
        reached = min((search.longest for search in searches if not search.done), default=None)
        if reached is None:
            reached = max(search.longest for search in searches)
        while self._streamer is not None and self._streamed < reached:
            self._streamed += 1
            newest = [search.beams.tokens[0, -1] for search in searches]
            self._streamer.put(torch.stack(newest).cpu())
