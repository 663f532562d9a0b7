"""Support without any question: a score of six numbers that decoding has at hand.

    entropy        of the full stream, where the first mention of a thing begins, in nats
    cf entropy     of the CF stream, there
    contrast       log-probability of the mention under the contrast, the sum over its tokens
    delta          z_full - z_cf, the sum over its tokens
    position       where the mention begins, as a share of the text
    again          1 if the text names the thing more than once

    support = 1 / (1 + exp(-(w . numbers + bias)))

The weights are a model's own under each method: `sira calibrate free` fits them to captions with labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sira_cli.core.forward_pass import Step
from sira_cli.core.rules import contrast
from sira_cli.errors import DataError, NotCalibratedError, SettingsError
from sira_cli.language import things
from sira_cli.language.things import Words
from sira_cli.methods.calibrated import Calibration, digest
from sira_cli.models import calibrations
from sira_cli.models.answering import AnsweringModel
from sira_cli.models.records import Answer
from sira_cli.models.second_look import Check, Claim
from sira_cli.models.verify import Verify
from sira_cli.models.vocabulary import Vocabulary

KIND = "support"  # of the calibration
NUMBERS = ("entropy", "cf entropy", "contrast", "delta", "position", "again")


class ThingNumbers:
    """The six numbers of each thing in B texts that are under way."""

    def __init__(self, vocabulary: Vocabulary, alpha: float) -> None:
        """Begin.

        Args:
            vocabulary: the model's.
            alpha: of the contrast, whatever method picks the tokens.
        """
        self._vocabulary, self._alpha = vocabulary, alpha
        self._tokens: list[list[int]] = []  # a list of B for each step
        self._steps: list[Tensor] = []  # [B, 4] each

    def add(self, tokens: Sequence[int], step: Step) -> None:
        """Take the next token of each text, and the logits `[B, V]` that it was picked from."""
        picked = torch.tensor(list(tokens), device=step.full.device)[:, None]
        logprob = contrast(step.full, step.cf, self._alpha).log_softmax(dim=-1).gather(1, picked)[:, 0]
        delta = (step.full.gather(1, picked) - step.cf.gather(1, picked))[:, 0].nan_to_num()
        entropies = (torch.special.entr(z.softmax(dim=-1)).sum(dim=-1) for z in (step.full, step.cf))
        self._tokens.append(list(tokens))
        self._steps.append(torch.stack([*entropies, logprob, delta], dim=1).cpu())

    def of(self, row: int, length: int, text: str, words: Words) -> dict[str, tuple[float, ...]]:
        """Return the six numbers of each thing that a text names.

        Args:
            row: its place in the batch.
            length: how many tokens it has.
            text: as decoded.
            words: the things to recognise.
        """
        decoded = self._vocabulary.words([tokens[row] for tokens in self._tokens[:length]])
        found = {}
        for thing in words.things(text):
            start, end = thing.spans[0]
            parts = [word for word in decoded if word.start < end and word.end > start]
            steps = torch.stack([step[row] for step in self._steps[parts[0].first : parts[-1].last]]).double()  # [T, 4]
            place = start / len(text)
            found[thing.name] = (*steps[0, :2].tolist(), *steps[:, 2:].sum(dim=0).tolist(), place, len(thing.spans) > 1)
        return found


@dataclass(frozen=True)
class Weights:
    """What turns the numbers into support, for one model under one method.

    Attributes:
        values: float64 `[7]`, for the six numbers as they are, and the bias.
        line: below it a thing is not supported.
    """

    values: Tensor
    line: float

    def support(self, numbers: Sequence[Sequence[float]]) -> list[float]:
        """Return the support of N things, 0 to 1; `numbers [N, 6]`."""
        table = torch.tensor(numbers, dtype=torch.float64).reshape(-1, len(NUMBERS))
        found: list[float] = (table @ self.values[:-1] + self.values[-1]).sigmoid().tolist()
        return found

    def tensors(self, method: str) -> dict[str, Tensor]:
        """Return them as a calibration holds them."""
        return {f"{method}.weights": self.values, f"{method}.line": torch.tensor([self.line], dtype=torch.float64)}

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], method: str) -> Weights | None:
        """Read what `tensors` wrote; None: nothing for the method.

        Raises:
            DataError: it is of another form.
        """
        if f"{method}.weights" not in tensors:
            return None
        values, line = tensors[f"{method}.weights"], tensors.get(f"{method}.line", torch.empty(0))
        if values.shape != (len(NUMBERS) + 1,) or line.shape != (1,):
            raise DataError(f"weights of {method}: expected {len(NUMBERS) + 1} numbers and a line")
        return cls(values.double(), float(line))


def streams_of(lvlm: AnsweringModel) -> dict[str, Any]:
    """Return the settings under which both streams of a model are looked at, as a calibration's origin holds them."""
    return {name: getattr(lvlm.sira, name) for name in ("k", "k_fraction", "alpha", "beta")}


class FreeSupport:
    """Scores what texts name while they are decoded.

    Attributes:
        settings: how, as records hold it.
    """

    def __init__(self, lvlm: AnsweringModel, verify: Verify) -> None:
        """Find the weights.

        Raises:
            NotCalibratedError: there are none for the model, the method, or the settings of the streams.
            SettingsError: a text may be decoded twice.
            DataError: the calibration cannot be read.
        """
        if lvlm.preset.generation.on_loop == "retry":
            raise SettingsError(
                "`verify=` free scores a text as it was decoded first, and `on_loop=` retry may decode it again: "
                "take trim, or `verify=` flag"
            )
        model, method = lvlm.preset.model, lvlm.decoder.name
        how = f"`sira calibrate free -m {model}`"
        path = calibrations.find(KIND, lvlm.revision)
        calibration = None if path is None else Calibration.read(path)
        weights = None if calibration is None else Weights.read(calibration.tensors, method)
        if path is None or calibration is None or weights is None:
            raise NotCalibratedError(
                f"`verify=` free needs weights for {model} under {method}, which are fitted once: see {how}, "
                "or take `verify=` flag, which needs none"
            )
        made_with = calibration.origin.made_from.get("streams", {}).get(method)
        if made_with != streams_of(lvlm):
            raise NotCalibratedError(
                f"{path}: its weights for {method} were fitted with other settings of the streams ({made_with}): "
                f"fit them anew with {how}, or take `verify=` flag"
            )
        self._lvlm, self._weights, self._words = lvlm, weights, verify.words or things.shipped()
        line = weights.line if verify.min_support is None else verify.min_support
        self.settings = verify.settings(lvlm.preset) | {"min_support": line, "weights": digest(str(path))}

    def answer(self, inputs: Any, *, seeds: Sequence[int], words: bool, task: str) -> list[Answer]:
        """Decode, and return answers with what their texts name, as `VerifiedAnswers.answer`.

        Only what was decoded is scored, and no prefix or suffix of the preset.
        """
        numbers = self.numbers()
        answers = self._lvlm.answer(inputs, seeds=seeds, words=words, task=task, on_tokens=numbers.add)
        return [self.checked(numbers, row, answer) for row, answer in enumerate(answers)]

    def numbers(self) -> ThingNumbers:
        """Return what takes the steps of a batch that is about to be decoded."""
        return ThingNumbers(self._lvlm.vocabulary, self._lvlm.sira.alpha)

    def support(self, numbers: ThingNumbers, row: int, length: int, text: str) -> dict[str, float]:
        """Return the support of each thing that a text names; otherwise as `ThingNumbers.of`."""
        found = numbers.of(row, length, text, self._words)
        return dict(zip(found, self._weights.support([*found.values()]), strict=True))

    def checked(self, numbers: ThingNumbers, row: int, answer: Answer) -> Answer:
        """Return an answer as the preset wants it, with what its text names.

        Args:
            numbers: of its batch.
            row: its place there.
            answer: as decoded, or its beginning.
        """
        support = self.support(numbers, row, answer.output_tokens, answer.text)
        finished = self._lvlm.preset.text.finished(answer)
        claims = tuple(
            Claim(thing.name, thing.spans, support[thing.name], 0.0)
            for thing in self._words.things(finished.text)
            if thing.name in support
        )
        return Check(finished.text, claims, self._words.name).beside(finished, self.settings)
