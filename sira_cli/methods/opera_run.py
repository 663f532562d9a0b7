"""OPERA's searches for B pictures in parallel: they share passes, and each decides for itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from sira_cli.core.upstream import end_and_pad
from sira_cli.errors import SettingsError
from sira_cli.methods.opera_passes import Ahead, Passes
from sira_cli.methods.opera_search import Ending, Rule, Search


class OperaRun:
    """B running searches.

    Attributes:
        passes: the model, and the cache of all beams.
        rollbacks: number of rollbacks of all searches.
    """

    def __init__(self, rule: Rule, passes: Passes, image: Tensor, streamer: BaseStreamer | None) -> None:
        """Prepare B searches.

        Args:
            rule: rule of the method.
            passes: the passes, with hooks on the model.
            image: `[B, S]` bool, image tokens of the prompts.
            streamer: as for `Opera.generate`.
        """
        self.passes = passes
        self.rollbacks = 0
        self._rule, self._image, self._streamer = rule, image, streamer
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
        """Decode B prompts `[B, S]`; `generate` calls this with its prepared arguments, and returns its result.

        Raises:
            SettingsError: sampling, beams or several texts per prompt were requested.
            UnsupportedModelError: as `Passes`.
        """
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
        padding = [0] * len(input_ids) if mask is None else (mask == 0).sum(dim=-1).tolist()
        prompts = zip(input_ids, self._image, padding, strict=True)
        searches = [Search(self._rule, *prompt, ending) for prompt in prompts]
        filler = int(pad if pad is not None else ends[0] if ends else 0)
        self._processors, self._prompts, self._filler = logits_processor, input_ids, filler
        self._search(searches, self.passes.prompt(input_ids, kwargs))
        if self._streamer is not None:
            self._streamer.end()
        texts = [search.text() for search in searches]
        padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=filler)  # [B, T]
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
                if (shorter := search.way_back()) is not None:
                    self.rollbacks += 1
                    search.go_back(shorter)
                    longest = max(each.length for each in running.values())
                    logits[rows] = self.passes.go_back(rows, length, search.beams.tokens, longest)
                    log_probs[rows] = search.choose_again(logits[rows])
                    candidates[rows] = -1  # no token was looked ahead
            log_probs = self._processed(running, log_probs, logits)
            parents, tokens = [], []
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
        self, running: dict[int, Search], ahead: Ahead, candidates: Tensor, parents: Tensor, tokens: Tensor
    ) -> Tensor:
        """Update the model's beams from the searches, and return the logits of the next token, `[R, V]`.

        If all tokens are candidates, the look-ahead pass has the logits; else they need another pass.

        Args:
            running: the searches that go on.
            ahead, candidates: the look-ahead pass, and its tokens, `[R before, C]`.
            parents, tokens: `[R]`, the beam that each one follows, and its new token.
        """
        length = max(search.length for search in running.values()) - 1
        hits = candidates[parents] == tokens[:, None]  # [R, C]
        at = parents, hits.int().argmax(dim=1)
        if not bool(hits.any(dim=1).all()):
            self.passes.follow(parents, length)
            ahead = self.passes.look_ahead(tokens[:, None])
            at = torch.arange(len(tokens), device=tokens.device), torch.zeros_like(tokens)
        self.passes.keep(ahead, *at, length)
        attention = ahead.attention[at]  # [R, N + 1]
        for rows, search in self._rows(running):
            search.settle(attention[rows, -(self._prompts.shape[1] + search.length) :])
        return ahead.logits[at].float()

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
        return torch.where(nothing_left, self._process(running, logits.log_softmax(dim=-1)), processed)

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
            now = {number: rows.start for number, (rows, _) in zip(running, self._rows(running), strict=True)}
            now = {number: row for number, row in now.items() if running[number].length == length}
            pictures, first = list(now), torch.tensor(list(now.values()), device=ids.device)
            for beam in range(self._rule.beams):
                ids[pictures, self._prompts.shape[1] :] = torch.stack(
                    [running[number].beams.tokens[beam] for number in pictures]
                )
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
            self._streamer.put(torch.stack([search.beams.tokens[0, -1] for search in searches]).cpu())
