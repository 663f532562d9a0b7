"""Decode a picture, or force texts on pictures, and write down both streams' predictions at every token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import transformers
from torch import Tensor

from sira_cli._version import __version__
from sira_cli.analysis.trace.logits import LogitsFile
from sira_cli.analysis.trace.request import OpenedRequest, TraceOptions, later
from sira_cli.analysis.trace.rows import StepRows
from sira_cli.core.forcing import score
from sira_cli.core.forward_pass import VIEWS, Step
from sira_cli.errors import SettingsError
from sira_cli.look.second_look import SecondLook
from sira_cli.methods import require
from sira_cli.methods.base import Ability
from sira_cli.models.model import LoadedModel
from sira_cli.models.progress import WordScores

Line = dict[str, Any]


_END: Line = {
    "type": "end",
    "status": "error",
    "error": "",
    "text": "",
    "finish_reason": "error",
    "output_tokens": 0,
    "duration_ms": 0.0,
    "words": [],
    "tracked": [],
}


def failed(error: str) -> Line:
    """Return the end line of a picture that failed."""
    return _END | {"error": error}


class Tracer:
    """Writes the lines of one trace."""

    def __init__(
        self,
        lvlm: LoadedModel,
        request: OpenedRequest,
        options: TraceOptions,
        write: Callable[[Line], None],
        logits: LogitsFile | None,
    ) -> None:
        require(lvlm.decoder, Ability.TRACES, "a trace")
        self._lvlm, self._request, self._options, self._write = lvlm, request, options, write
        self._vocabulary = lvlm.vocabulary
        self._tracked = {word: self._vocabulary.encode_inside(word) for word in options.track}
        for word, ids in self._tracked.items():
            if not ids:
                raise SettingsError(f"`track=`: {word!r} has no tokens")
        self._tokens: list[int] = []
        self._forced = request.text is not None
        self._scores = WordScores(lvlm.parser, lvlm.sira.alpha, at_once=self._forced)
        self._logprobs: list[dict[str, float]] = []  # one per chosen token
        self._logits = logits
        self._look = None if options.verify is None else SecondLook(lvlm, options.verify)
        self._began = time.perf_counter()

    def run(self, input_ids: Tensor, attention_mask: Tensor) -> None:
        """Write the first line. `input_ids [1, S]`, left-padded."""
        lvlm, request, preset = self._lvlm, self._request, self._lvlm.preset
        live = attention_mask[0].bool()
        image = lvlm.find_image(input_ids)[0][live]
        group = {"images": self._images(image)} if request.picture.more else {}
        self._write(
            {
                "type": "run",
                "schema": "sira.trace/1",
                "task": request.task,
                "file_name": request.name,
                "image": {
                    "path": request.address,
                    "sha256": request.picture.sha256,
                    "width": request.picture.image.width,
                    "height": request.picture.image.height,
                },
                **group,
                "prompt": request.prompt,
                **later(preset),
                "preset": preset.name,
                "model": preset.model,
                "revision": lvlm.revision,
                "method": lvlm.method,
                "k": lvlm.k,
                "layers": lvlm.layers,
                "alpha": lvlm.alpha,
                "beta": preset.sira.beta,
                "max_new_tokens": preset.generation.max_new_tokens,
                "temperature": preset.generation.temperature,
                "top_p": preset.generation.top_p,
                "seed": preset.generation.seed,
                "forced": request.text is not None,
                "top_k": self._options.top_k,
                "vocab_size": lvlm.model.get_output_embeddings().weight.shape[0],
                "prompt_tokens": int(live.sum()),
                "image_tokens": int(image.sum()),
                "image_positions": _runs(image),
                "tracked": [{"word": word, "token_ids": ids} for word, ids in self._tracked.items()],
                "device": lvlm.device,
                "dtype": lvlm.dtype,
                "versions": {
                    "sira": __version__,
                    "torch": torch.__version__,
                    "transformers": transformers.__version__,
                },
            }
        )

    def _images(self, image: Tensor) -> list[Line]:
        """Return the size of each picture of a group, and its positions: those of all, `[S]` bool, in order.

        Each picture has as many as it has alone. If the numbers depend on the other pictures, the positions cannot be
        told apart.
        """
        lvlm, pictures = self._lvlm, self._request.picture.images
        with lvlm.vocabulary.lock:
            alone = [lvlm.chat_inputs([picture], [self._request.prompt])["input_ids"] for picture in pictures]
        counts = [int(lvlm.find_image(ids).sum()) for ids in alone]
        sizes = [{"width": picture.width, "height": picture.height} for picture in pictures]
        if sum(counts) != int(image.sum()):
            return sizes
        owner = image.cumsum(dim=0) - 1  # [S] how many image tokens come before
        ends = torch.tensor(counts).cumsum(dim=0).tolist()
        own = [image & (end - count <= owner) & (owner < end) for count, end in zip(counts, ends, strict=True)]
        return [{**size, "image_positions": _runs(each)} for size, each in zip(sizes, own, strict=True)]

    def token(self, token: int, step: Step) -> None:
        """Write the line of a token, and the logits `[1, V]` that decided it."""
        views = StepRows(step, self._vocabulary)
        top = views.top(self._options.top_k)
        firsts = [ids[0] for ids in self._tracked.values()]
        rows = views.rows([token, *top, *firsts])
        tracked = zip(self._tracked, rows[1 + len(top) :], strict=True)
        self._write(
            {
                "type": "token",
                "step": len(self._tokens),
                **rows[0],
                "special": self._vocabulary.is_special(token),
                "delta": views.delta(token),
                "kl": views.kl(),
                "top": rows[1 : 1 + len(top)],
                "tracked": [{"word": word, **row} for word, row in tracked],
            }
        )
        self._tokens.append(token)
        self._scores.add([token], step)
        self._logprobs.append({view: rows[0][view]["logprob"] for view in VIEWS})
        if self._logits is not None:
            self._logits.append(token, views.logits)

    def end(self) -> Line:
        """Write the last line, and return it."""
        if self._logits is not None:
            self._logits.finish()
        parsed = self._lvlm.parser.parse(self._tokens, at_once=self._forced)
        ended = self._lvlm.answer_of(self._tokens)
        error = "" if self._forced else ended.error
        reasoning = {"reasoning": parsed.reasoning} if parsed.reasoning else {}
        looked = self._looked(parsed.text)
        line = _END | {
            "status": "error" if error else "ok",
            "error": f"{self._request.name}: {error}" if error else "",
            "text": parsed.text,
            **reasoning,
            "finish_reason": "forced" if self._forced else ended.finish_reason,
            "output_tokens": len(self._tokens),
            "duration_ms": round(1000 * (time.perf_counter() - self._began), 1),
            "words": self._scores.words(0, len(self._tokens)),
            "tracked": list(self._said()),
            **looked,
        }
        self._write(line)
        return line

    def _looked(self, text: str) -> Line:
        """Return the second look at the text, if one is asked for."""
        verify = self._options.verify
        if self._look is None or verify is None:
            return {}
        objects = self._look.check(self._request.picture.shown, text).objects
        return {"objects": [claim.to_json() for claim in objects], "verify": verify.settings(self._lvlm.preset)}

    def _said(self) -> Iterator[Line]:
        """Yield the places where the text continues with all tokens of a tracked word."""
        for word, ids in self._tracked.items():
            for step in range(len(self._tokens) - len(ids) + 1):
                if self._tokens[step : step + len(ids)] == ids:
                    logprobs = self._logprobs[step : step + len(ids)]
                    sums = {view: sum(logprob[view] for logprob in logprobs) for view in VIEWS}
                    yield {"word": word, "step": step, **sums}


def trace_generated(
    lvlm: LoadedModel, request: OpenedRequest, options: TraceOptions, write: Callable[[Line], None]
) -> Line:
    """Decode as `Lvlm.run` does, and write a line per token at once."""
    lvlm.check_prompt(request.prompt, len(request.picture.images))
    with LogitsFile.replacing(options.full_logits) as logits:
        tracer = Tracer(lvlm, request, options, write, logits)
        inputs = _prepared(lvlm, [request], at_once=False)
        tracer.run(inputs["input_ids"], inputs["attention_mask"])
        seeds = lvlm.text_seeds([request.picture.sha256], [request.prompt])
        lvlm.generate(inputs, on_tokens=lambda tokens, step: tracer.token(tokens[0], step), seeds=seeds)
        return tracer.end()


def trace_forced(
    lvlm: LoadedModel,
    requests: Sequence[OpenedRequest],
    options: TraceOptions,
    writes: Sequence[Callable[[Line], None]],
) -> list[Line]:
    """Score given texts under both streams, in one pass for all of them."""
    for one in requests:
        lvlm.check_prompt(one.prompt, len(one.picture.images))
        if not (one.text or "").strip():
            raise SettingsError(f"{one.name}: the text to force is empty")
    with ExitStack() as files:
        tracers = [
            Tracer(lvlm, one, options, write, files.enter_context(LogitsFile.replacing(options.full_logits)))
            for one, write in zip(requests, writes, strict=True)
        ]
        inputs = _prepared(lvlm, requests, at_once=True)
        prompts = inputs["input_ids"].tolist()
        texts = [
            lvlm.vocabulary.encode_after(prompt, one.text or "") for prompt, one in zip(prompts, requests, strict=True)
        ]
        for row, tracer in enumerate(tracers):
            tracer.run(inputs["input_ids"][row : row + 1], inputs["attention_mask"][row : row + 1])
        longest = max(map(len, texts))
        for number, step in enumerate(score(lvlm.model, lvlm.both_streams, inputs, texts)):
            for row, (tracer, tokens) in enumerate(zip(tracers, texts, strict=True)):
                position = number - (longest - len(tokens))
                if position >= 0:
                    views = (view[row : row + 1] for view in (step.full, step.cf, step.contrast))
                    tracer.token(tokens[position], Step(*views))
        return [tracer.end() for tracer in tracers]


def _prepared(lvlm: LoadedModel, requests: Sequence[OpenedRequest], *, at_once: bool) -> Any:
    inputs = lvlm.prepare(
        [one.picture.shown for one in requests],
        [one.prompt for one in requests],
        [one.picture.sha256 for one in requests],
        at_once=at_once,
    )
    return lvlm.to_device(inputs)


def _runs(image: Tensor) -> list[list[int]]:
    """Return `[first, last + 1]` of each run of True: `[S]` bool."""
    edges = torch.diff(image.int(), prepend=image.new_zeros(1).int(), append=image.new_zeros(1).int())
    firsts, lasts = (edges == 1).nonzero().flatten(), (edges == -1).nonzero().flatten()
    return torch.stack([firsts, lasts], dim=1).tolist()
