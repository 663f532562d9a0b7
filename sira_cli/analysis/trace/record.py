"""What a trace records: both streams' predictions at every token of a text, generated or forced."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers
from PIL.Image import Image
from torch import Tensor

from sira_cli._version import __version__
from sira_cli.analysis.trace.settings import Line, TraceSettings
from sira_cli.core.passes import score
from sira_cli.core.rules import kl_divergence
from sira_cli.core.streams import VIEWS, Step
from sira_cli.files import replacing, writing
from sira_cli.look.second_look import SecondLook
from sira_cli.methods.prompts import pictures_of
from sira_cli.models.progress import WordScores
from sira_cli.run.runner import Batch, Item

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown
    from sira_cli.models.model import LoadedModel

Keep = Callable[[int, Tensor], None]  # takes a token and its logits `[3, V]`
_HEADER = 512  # bytes reserved for that of a safetensors file, which allows spaces after the JSON


def traced(task: TraceSettings, lvlm: LoadedModel, batch: Batch[list[Line]]) -> list[list[Line]]:
    """Return the lines of each picture's text: of one that is decoded, or of given texts in one pass for all."""
    inputs = lvlm.to_device(batch.inputs)
    with ExitStack() as files:
        recorders = [
            Recorder(task, lvlm, item, shown, files.enter_context(logits_file(task.full_logits)))
            for item, shown in zip(batch.items, batch.images, strict=True)
        ]
        for row, recorder in enumerate(recorders):
            recorder.begin(inputs["input_ids"][row], inputs["attention_mask"][row].bool())
        if not task.forced:
            (recorder,), item = recorders, batch.items[0]
            seeds = lvlm.text_seeds([item.sha256], [item.prompt])
            lvlm.generate(inputs, on_tokens=lambda tokens, step: recorder.add(tokens[0], step), seeds=seeds)
            return [recorder.end()]
        prompts = inputs["input_ids"].tolist()
        texts = [
            lvlm.vocabulary.encode_after(prompt, item.picture.caption or "")
            for prompt, item in zip(prompts, batch.items, strict=True)
        ]
        longest = max(map(len, texts))
        for number, step in enumerate(score(lvlm.model, lvlm.both_streams, inputs, texts)):
            for row, (recorder, tokens) in enumerate(zip(recorders, texts, strict=True)):
                position = number - (longest - len(tokens))
                if position >= 0:
                    views = (view[row : row + 1] for view in (step.full, step.cf, step.contrast))
                    recorder.add(tokens[position], Step(*views))
        return [recorder.end() for recorder in recorders]


class Recorder:
    """Makes the lines of one trace."""

    def __init__(
        self, task: TraceSettings, lvlm: LoadedModel, item: Item[list[Line]], shown: Shown, keep: Keep | None
    ) -> None:
        self._task, self._lvlm, self._item, self._shown, self._keep = task, lvlm, item, shown, keep
        self._tracked = task.tracked(lvlm)
        self._scores = WordScores(lvlm.parser, lvlm.sira.alpha, at_once=task.forced)
        self._lines: list[Line] = []

    def begin(self, input_ids: Tensor, live: Tensor) -> None:
        """Add the first line. `input_ids [S]`, left-padded; `live [S]` bool."""
        task, lvlm, item, preset = self._task, self._lvlm, self._item, self._lvlm.preset
        image = lvlm.find_image(input_ids[None])[0][live]
        first, *more = pictures_of(self._shown)
        self._lines.append(
            {
                "type": "run",
                "schema": "sira.trace/1",
                "task": "caption" if task.question is None else "ask",
                "file_name": item.name,
                "image": {"path": item.picture.address, "sha256": item.sha256, **_size(first)},
                **({"images": self._images(image)} if more else {}),
                "prompt": item.prompt,
                **task.later(),
                "preset": preset.name,
                "model": preset.model,
                "revision": lvlm.revision,
                "method": lvlm.method,
                "k": lvlm.k,
                "layers": lvlm.layers,
                "alpha": lvlm.alpha,
                "beta": preset.sira.beta,
                **task.sampling(),
                "forced": task.forced,
                "top_k": task.top_k,
                "vocab_size": lvlm.model.get_output_embeddings().weight.shape[0],
                "prompt_tokens": int(live.sum()),
                "image_tokens": int(image.sum()),
                "image_positions": _runs(image.nonzero().flatten()),
                "tracked": [{"word": word, "token_ids": ids} for word, ids in self._tracked.items()],
                "device": lvlm.device,
                "dtype": lvlm.dtype,
                "versions": {"sira": __version__} | {each.__name__: each.__version__ for each in (torch, transformers)},
            }
        )

    def _images(self, image: Tensor) -> list[Line]:
        """Return the size of each picture of a group, and its positions: those of all, `[S]` bool, in order.

        Each picture has as many as it has alone. If the numbers depend on the other pictures, the positions cannot be
        told apart.
        """
        lvlm, pictures = self._lvlm, pictures_of(self._shown)
        with lvlm.vocabulary.lock:
            alone = [lvlm.chat_inputs([picture], [self._item.prompt])["input_ids"] for picture in pictures]
        counts, positions = [int(lvlm.find_image(ids).sum()) for ids in alone], image.nonzero().flatten()
        sizes = [_size(picture) for picture in pictures]
        if sum(counts) != len(positions):
            return sizes
        own = map(_runs, positions.split_with_sizes(counts))
        return [{**size, "image_positions": runs} for size, runs in zip(sizes, own, strict=True)]

    def add(self, token: int, step: Step) -> None:
        """Add the line of a token, from the logits `[1, V]` that decided it."""
        logits = torch.cat([step.full, step.cf, step.contrast])  # [3, V]
        logprobs = logits.log_softmax(dim=-1)
        best = torch.unique(logits.topk(min(self._task.top_k, logits.shape[1])).indices)
        top: list[int] = best[logits[2, best].argsort(descending=True, stable=True)].tolist()
        firsts = [ids[0] for ids in self._tracked.values()]
        chosen, *rows = self._rows(logits, logprobs, [token, *top, *firsts])
        tracked = zip(self._tracked, rows[len(top) :], strict=True)
        self._lines.append(
            {
                "type": "token",
                "step": len(self._lines) - 1,
                **chosen,
                "special": self._lvlm.vocabulary.is_special(token),
                "delta": chosen["full"]["logit"] - chosen["cf"]["logit"],
                "kl": float(kl_divergence(logprobs[0], logprobs[1])),
                "top": rows[: len(top)],
                "tracked": [{"word": word, **row} for word, row in tracked],
            }
        )
        self._scores.add([token], step)
        if self._keep is not None:
            self._keep(token, logits)

    def _rows(self, logits: Tensor, logprobs: Tensor, tokens: list[int]) -> list[Line]:
        """Describe each token in all views `[3, V]`: logit, logprob, rank (1 + number of larger logits)."""
        ids = torch.tensor(tokens, device=logits.device)
        own = logits[:, ids]  # [3, n]
        ranks = 1 + torch.stack([(logits > logit[:, None]).sum(dim=1) for logit in own.T], dim=1)
        columns = zip(own.T.tolist(), logprobs[:, ids].T.tolist(), ranks.T.tolist(), strict=True)
        return [
            self._lvlm.vocabulary.describe(token)
            | {
                view: {"logit": _finite(logit), "logprob": _finite(logprob), "rank": rank}
                for view, logit, logprob, rank in zip(VIEWS, *column, strict=True)
            }
            for token, column in zip(tokens, columns, strict=True)
        ]

    def end(self) -> list[Line]:
        """Add the last line, and return all."""
        task, lvlm, lines = self._task, self._lvlm, self._lines[1:]
        tokens = [line["token_id"] for line in lines]
        parsed, ended = lvlm.parser.parse(tokens, at_once=task.forced), lvlm.answer_of(tokens)
        error, looked, uses = "" if task.forced else ended.error, {}, list[Line]()
        for word, ids in self._tracked.items():  # where the text continues with all tokens of a tracked word
            for step in range(len(tokens) - len(ids) + 1):
                if tokens[step : step + len(ids)] == ids:
                    own = lines[step : step + len(ids)]
                    uses.append({"word": word, "step": step})
                    uses[-1] |= {view: sum(line[view]["logprob"] for line in own) for view in VIEWS}
        if task.verify is not None:
            objects = SecondLook(lvlm, task.verify).check(self._shown, parsed.text).objects
            looked = {"objects": [claim.to_json() for claim in objects], "verify": task.verify.settings(lvlm.preset)}
        self._lines.append(
            {
                "type": "end",
                "status": "error" if error else "ok",
                "error": f"{self._item.name}: {error}" if error else "",
                "text": parsed.text,
                "finish_reason": "forced" if task.forced else ended.finish_reason,
                "output_tokens": len(tokens),
                "duration_ms": 0.0,
                "words": self._scores.words(0, len(tokens)),
                "tracked": uses,
                **({"reasoning": parsed.reasoning} if parsed.reasoning else {}),
                **looked,
            }
        )
        return self._lines


def _size(picture: Image) -> Line:
    return {"width": picture.width, "height": picture.height}


def _finite(value: float) -> float:
    """Replace the infinite logit of a suppressed token by the most negative float32: JSON has no infinity."""
    return max(value, torch.finfo(torch.float32).min)


def _runs(positions: Tensor) -> list[list[int]]:
    """Return `[first, last + 1]` of each run of consecutive numbers: `[N]`, in order."""
    runs: list[list[int]] = []
    for position in positions.tolist():
        if runs and runs[-1][1] == position:
            runs[-1][1] += 1
        else:
            runs.append([position, position + 1])
    return runs


@contextmanager
def logits_file(path: Path | None) -> Iterator[Keep | None]:
    """Yield a function that appends a token and its logits `[3, V]` to a safetensors file, or None without a path.

    The file holds `logits` float32 `[steps, 3, V]` (full, cf, contrast) and `token_ids` int64 `[steps]`. It is written
    step by step, so that memory does not grow with the text, and replaces `path` if the block ends without an error.
    """
    if path is None:
        yield None
        return
    tokens, end = list[int](), 0  # of the logits, in bytes
    with replacing(path) as file:

        def append(token: int, logits: Tensor) -> None:
            nonlocal end
            with writing(path):
                end += file.write(logits.float().cpu().contiguous().numpy().tobytes())
            tokens.append(token)

        file.write(b" " * (8 + _HEADER))
        yield append
        steps, ids = len(tokens), file.write(struct.pack(f"<{len(tokens)}q", *tokens))
        header = {
            "__metadata__": {"views": "full, cf, contrast"},
            "logits": {"dtype": "F32", "shape": [steps, 3, end // max(1, 12 * steps)], "data_offsets": [0, end]},
            "token_ids": {"dtype": "I64", "shape": [steps], "data_offsets": [end, end + ids]},
        }
        file.seek(0)
        file.write(struct.pack("<Q", _HEADER) + json.dumps(header).encode().ljust(_HEADER))
