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
from torch import Tensor

from sira_cli._version import __version__
from sira_cli.analysis.trace.task import Line, Trace
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


def traced(task: Trace, lvlm: LoadedModel, batch: Batch[list[Line]]) -> list[list[Line]]:
    """Return the lines of each picture's text: of one that is decoded, or of given texts in one pass for all."""
    inputs = lvlm.to_device(batch.inputs)
    with ExitStack() as files:
        rows = zip(batch.items, batch.images, inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)
        recorders = [
            Recorder(task, lvlm, item, shown, ids[live], files.enter_context(logits_file(task.full_logits)))
            for item, shown, ids, live in rows
        ]
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
    """Makes the lines of one trace, of a prompt `[S]` without padding."""

    def __init__(
        self, task: Trace, lvlm: LoadedModel, item: Item[list[Line]], shown: Shown, ids: Tensor, keep: Keep | None
    ) -> None:
        self._task, self._lvlm, self._item, self._shown, self._keep = task, lvlm, item, shown, keep
        self._tracked = task.tracked(lvlm)
        self._scores = WordScores(lvlm.parser, lvlm.sira.alpha, at_once=task.forced)
        positions = lvlm.find_image(ids[None])[0].nonzero().flatten().tolist()
        firsts, ends = {*positions} - {one + 1 for one in positions}, {one + 1 for one in positions} - {*positions}
        size = dict(zip(("width", "height"), pictures_of(shown)[0].size, strict=True))
        run = {
            "type": "run",
            "schema": "sira.trace/1",
            "task": "caption" if task.question is None else "ask",
            "file_name": item.name,
            "image": {"path": item.picture.address, "sha256": item.sha256, **size},
            "prompt": item.prompt,
            "preset": lvlm.preset.name,
            "model": lvlm.preset.model,
            **{name: getattr(lvlm, name) for name in ("revision", "method", "k", "layers", "alpha")},
            "beta": lvlm.preset.sira.beta,
            **task.decoding(),
            "forced": task.forced,
            "top_k": task.top_k,
            "vocab_size": lvlm.model.get_output_embeddings().weight.shape[0],
            "prompt_tokens": len(ids),
            "image_tokens": len(positions),
            "image_positions": [*map(list, zip(sorted(firsts), sorted(ends), strict=True))],
            "tracked": [{"word": word, "token_ids": ids} for word, ids in self._tracked.items()],
            "device": lvlm.device,
            "dtype": lvlm.dtype,
            "versions": {"sira": __version__} | {each.__name__: each.__version__ for each in (torch, transformers)},
        }
        self._lines: list[Line] = [run]

    def add(self, token: int, step: Step) -> None:
        """Add the line of a token, from the logits `[1, V]` that decided it."""
        logits = torch.cat([step.full, step.cf, step.contrast])  # [3, V]
        logprobs = logits.log_softmax(dim=-1)
        best = torch.unique(logits.topk(min(self._task.top_k, logits.shape[1])).indices)
        top: list[int] = best[logits[2, best].argsort(descending=True, stable=True)].tolist()
        firsts = [ids[0] for ids in self._tracked.values()]
        chosen, *rows = self._rows(logits, logprobs, [token, *top, *firsts])
        tracked = zip(self._tracked, rows[len(top) :], strict=True)
        line = {"type": "token", "step": len(self._lines) - 1, **chosen}
        line["special"] = self._lvlm.vocabulary.is_special(token)
        line["delta"] = chosen["full"]["logit"] - chosen["cf"]["logit"]
        line |= {"kl": float(kl_divergence(logprobs[0], logprobs[1])), "top": rows[: len(top)]}
        self._lines.append(line | {"tracked": [{"word": word, **row} for word, row in tracked]})
        self._scores.add([token], step)
        if self._keep is not None:
            self._keep(token, logits)

    def _rows(self, logits: Tensor, logprobs: Tensor, tokens: list[int]) -> list[Line]:
        """Describe each token in all views `[3, V]`: logit, logprob, rank (1 + number of larger logits).

        The infinite logit of a suppressed token is the most negative float32: JSON has no infinity.
        """
        ids, least = torch.tensor(tokens, device=logits.device), torch.finfo(torch.float32).min
        own = logits[:, ids]  # [3, n]
        ranks = 1 + torch.stack([(logits > logit[:, None]).sum(dim=1) for logit in own.T], dim=1)
        numbers = (own.clamp(min=least), logprobs[:, ids].clamp(min=least), ranks)
        columns = zip(*(each.T.tolist() for each in numbers), strict=True)
        return [
            self._lvlm.vocabulary.describe(token)
            | {
                view: {"logit": logit, "logprob": logprob, "rank": rank}
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
        end = {
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
        }
        return [*self._lines, end | looked]


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
