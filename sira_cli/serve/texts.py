"""The text of a request as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from sira_cli.models.reasoning import Parsed, ReasoningParser
from sira_cli.models.texts import Answer
from sira_cli.serve.jobs import Job, Logprob, TextPiece


class JobText:
    """The text of one job, token by token."""

    def __init__(self, job: Job, parser: ReasoningParser, ends: Sequence[int]) -> None:
        self.job, self._vocabulary, self._ends = job, parser.vocabulary, ends
        self._parsing, self._retracted = parser.begin(), 0
        self.tokens: list[int] = []
        self.logprobs: list[Logprob] = []
        self.stopped: int | None = None  # characters before the string that ended the text
        self._ended = False

    @property
    def done(self) -> bool:
        """Whether no further token matters."""
        return self._ended or self.stopped is not None or self.job.gone

    def add(self, token: int, logprob: Logprob | None = None) -> None:
        """Take the next token. The end token and other tokens without text have no log-probability for clients."""
        if self.done:
            return
        self.tokens.append(token)
        self._ended = token in self._ends
        is_text = self._parsing.add(token) and not self._ended and not self._vocabulary.is_special(token)
        if logprob is not None and is_text:
            self.logprobs.append(logprob)
        if self.job.stops and is_text:
            text = self._parsing.parsed().text
            found = [place for stop in self.job.stops if (place := text.find(stop)) >= 0]
            self.stopped = min(found, default=None)

    def text(self) -> str:
        """Return the text so far, without surrounding spaces, cut where it was stopped."""
        return self._until_stop(self._parsed().text)

    def _until_stop(self, text: str) -> str:
        return text[: self.stopped].strip() if self.stopped is not None else text

    def _parsed(self) -> Parsed:
        return self._parsing.parsed(final=self._ended)

    def cut(self, answer: Answer) -> Answer:
        """Return an answer with its text cut at a stop string, if one matched."""
        if self.stopped is None:
            return answer
        text = self.text()
        words = None if answer.words is None else [word for word in answer.words if word["end"] <= len(text)]
        return replace(answer, text=text, finish_reason="stop", output_tokens=len(self.tokens), words=words)

    def tell(self) -> None:
        """Send the final part of the text and its reasoning."""
        parsed, job = self._parsed(), self.job
        if parsed.retracted > self._retracted:  # sent text cannot be taken back: the answer follows it
            self._retracted, job.sent, job.sent_reasoning = parsed.retracted, 0, len(parsed.reasoning)
            job.sent_logprobs, job.sent_bytes = len(self.logprobs), 0
        text = self._until_stop(parsed.text)
        certain = len(text)
        longest = max((len(stop) for stop in self.job.stops), default=1) - 1
        if not self.done and longest:
            # It may be the beginning of a stop; and before a stop, white space is not part of the text.
            certain = len(text[: max(0, min(certain, len(text) - longest))].rstrip())
        if certain > job.sent or len(parsed.reasoning) > job.sent_reasoning:
            job.tell(self.piece(text[: max(certain, job.sent)], parsed.reasoning))

    def piece(self, text: str, reasoning: str, *, last: bool = False) -> TextPiece:
        """Return the unsent part of the text and of its log-probabilities, and count it as sent."""
        job = self.job
        piece = TextPiece(text[job.sent :], self._new_logprobs(text, last), reasoning[job.sent_reasoning :])
        job.sent, job.sent_reasoning = max(job.sent, len(text)), max(job.sent_reasoning, len(reasoning))
        return piece

    def _new_logprobs(self, text: str, last: bool) -> list[Logprob]:
        """Return the log-probabilities of tokens that make up the text: joined, they are the text.

        White space before it, and text after a stop string, is left out.
        """
        job = self.job
        if self._parsed().cuts:  # tokens of a thought are among them, and not told apart by any marker's id
            return []
        found = []
        if last and not self.text().startswith(
            text
        ):  # the preset changed it: these are the tokens as they were decoded
            return self.logprobs[job.sent_logprobs :]
        length = len(text.encode())
        for logprob in self.logprobs[job.sent_logprobs :]:
            data = bytes(logprob["bytes"])
            data = data if job.sent_bytes else data.lstrip()
            if job.sent_bytes + len(data) > length:
                data = data[: length - job.sent_bytes] if last else b""
                if not data:
                    break
            job.sent_logprobs += 1
            job.sent_bytes += len(data)
            if data:
                found.append(_shown_as(data, logprob))
        return found


def _shown_as(data: bytes, logprob: Logprob) -> Logprob:
    """Return a log-probability, and those of alternatives, with the bytes of their tokens that are in the text."""
    shown = {"token": data.decode("utf-8", "replace"), "bytes": list(data)}
    top = [other | shown if other["bytes"] == logprob["bytes"] else other for other in logprob["top_logprobs"]]
    return logprob | shown | {"top_logprobs": top}


class Done(StoppingCriteria):
    """Ends the rows of texts that no further token would change."""

    def __init__(self, rows: Sequence[JobText]) -> None:
        self._rows = rows

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        """Return `[B]` whether each row is done."""
        return torch.tensor([row.done for row in self._rows], device=input_ids.device)
