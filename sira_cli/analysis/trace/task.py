"""`Trace`, a task whose result is lines: both streams' predictions at every token of a text, generated or forced."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor
from typing_extensions import override

from sira_cli._version import __version__
from sira_cli.core.config import SiraConfig
from sira_cli.core.passes import score
from sira_cli.core.rules import kl_divergence
from sira_cli.core.streams import VIEWS, Step
from sira_cli.errors import SettingsError
from sira_cli.files import replacing, writing
from sira_cli.look.claims import Verify
from sira_cli.look.second_look import SecondLook
from sira_cli.methods.base import Method
from sira_cli.methods.prompts import pictures_of
from sira_cli.models import combinations
from sira_cli.models.preset import Preset
from sira_cli.models.progress import WordScores
from sira_cli.pictures.picture import Picture
from sira_cli.run.items import Batch, Item, Task

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown
    from sira_cli.models.model import LoadedModel

Line = dict[str, Any]
Keep = Callable[[int, Tensor], None]  # takes a token and its logits `[3, V]`
_HEADER = 512  # bytes reserved for that of a safetensors file, which allows spaces after the JSON


@dataclass(frozen=True)
class Trace(Task[list[Line]]):
    """The logits of both streams at each token of a text about each picture.

    Attributes:
        preset, method: with the settings in force.
        question: about pictures without their own prompt; None: the preset's caption prompt.
        forced: score each picture's caption, instead of decoding a text.
        top_k: number of candidates of each view.
        track: words whose first token is looked up at every step.
        full_logits: a safetensors file for all logits of one trace.
        verify: how to ask about each object that a text names; None: do not ask.
    """

    preset: Preset
    method: Method
    question: str | None = None
    forced: bool = False
    top_k: int = 10
    track: tuple[str, ...] = ()
    full_logits: Path | None = None
    verify: Verify | None = None

    def __post_init__(self) -> None:
        mode = None if self.verify is None else self.verify.mode
        combinations.check(self.preset, self.method, verify=mode, streams="sira trace")

    def decoding(self) -> Line:
        """Return how texts are decoded, by names in run lines, which lack what is None here: it is off."""
        generation = self.preset.generation
        later = self.preset.later()
        return {
            "max_new_tokens": generation.max_new_tokens,
            "temperature": generation.temperature,
            "top_p": generation.top_p,
            "seed": generation.seed,
            "sampling_top_k": later.pop("top_k"),  # `top_k` of a trace is of candidates
            **later,
            "image_settings": self.preset.image.given() or None,
        }

    def settings(self) -> Line:
        """Return the settings that all traces of a file share, as far as known, by their names in run lines."""
        sira = SiraConfig(**self.preset.sira.model_dump())
        settings: Line = {
            "model": self.preset.model,
            "method": self.method.name,
            "beta": sira.beta,
            "top_k": self.top_k,
            "alpha": self.method.contrast_strength(sira),
            "track": list(self.track),
            "verify": self.verify is not None,
            **self.decoding(),
        }
        if sira.k is not None:
            settings["k"] = sira.k
        return settings

    def tracked(self, lvlm: LoadedModel) -> dict[str, list[int]]:
        """Return the tokens of each tracked word."""
        tracked = {}
        for word in self.track:
            tracked[word] = lvlm.vocabulary.encode_inside(word)
            if not tracked[word]:
                raise SettingsError(f"`track=`: {word!r} has no tokens")
        return tracked

    @override
    def check_model(self, lvlm: LoadedModel) -> None:
        """Refuse tracked words without tokens."""
        self.tracked(lvlm)

    @override
    def blank(self, lvlm: LoadedModel) -> list[Line]:
        """Return the settings that all traces of a loaded model share, as the only line."""
        return [self.settings() | {"k": lvlm.k, "revision": lvlm.revision, "dtype": lvlm.dtype}]

    @override
    def first_prompt(self, picture: Picture) -> str:
        """Return the prompt about a picture."""
        prompts = self.preset.prompts
        usual = prompts.caption if self.question is None else prompts.asking(self.question)
        return picture.prompt or usual

    @override
    def needs_images(self) -> bool:
        """Return True: their sizes are in the trace, and a second look is at them."""
        return True

    def inputs(self, lvlm: LoadedModel, items: Sequence[Item[list[Line]]], images: Sequence[Shown]) -> Any:
        """Return the model's inputs for pictures whose samples are decoded."""
        for item, image in zip(items, images, strict=True):
            lvlm.check_prompt(item.prompt, len(image) if isinstance(image, tuple) else 1)
        return super().inputs(lvlm, items, images)

    @override
    def skips_thought(self) -> bool:
        """Return whether texts are given: they hold no thought."""
        return self.forced

    def answers(self, lvlm: LoadedModel, batch: Batch[list[Line]], on_text: Any = None) -> list[list[Line]]:
        """Return the lines of each picture's text: of one that is decoded, or of given texts in one pass for all."""
        inputs = lvlm.to_device(batch.inputs)
        with ExitStack() as files:
            recorders = []
            for row, item in enumerate(batch.items):
                ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()]
                keep = files.enter_context(logits_file(self.full_logits))
                recorders.append(Recorder(self, lvlm, item, batch.images[row], ids, keep))
            if self.forced:
                record_forced(lvlm, batch.items, inputs, recorders)
            else:
                seeds = batch.seeds(lvlm)
                lvlm.generate(inputs, on_tokens=lambda tokens, step: recorders[0].add(tokens[0], step), seeds=seeds)
            return [recorder.end() for recorder in recorders]

    def settle(self, lvlm: LoadedModel, item: Item[list[Line]], answer: list[Line], milliseconds: float = 0) -> None:
        """Give an item its lines."""
        answer[-1]["duration_ms"] = round(milliseconds, 1)
        item.result = answer
        item.error = answer[-1]["error"]

    def fail(self, lvlm: LoadedModel, item: Item[list[Line]], error: Exception) -> None:
        """Give an item the line of a picture that failed."""
        super().fail(lvlm, item, error)
        failed = {"type": "end", "status": "error", "error": item.error, "text": "", "finish_reason": "error"}
        item.result = [{**failed, "output_tokens": 0, "duration_ms": 0.0, "words": [], "tracked": []}]


def record_forced(
    lvlm: LoadedModel, items: Sequence[Item[list[Line]]], inputs: Any, recorders: Sequence[Recorder]
) -> None:
    """Give each recorder the tokens of its picture's caption, whose logits are computed in one pass for all."""
    texts = []
    for prompt, item in zip(inputs["input_ids"].tolist(), items, strict=True):
        texts.append(lvlm.vocabulary.encode_after(prompt, item.picture.caption or ""))
    longest = max(map(len, texts))
    for number, step in enumerate(score(lvlm.model, lvlm.both_streams, inputs, texts)):
        for row, tokens in enumerate(texts):
            position = number - (longest - len(tokens))
            if position >= 0:
                alone = slice(row, row + 1)
                views = Step(step.full[alone], step.cf[alone], step.contrast[alone])
                recorders[row].add(tokens[position], views)


class Recorder:
    """Makes the lines of one trace, of a prompt `[S]` without padding."""

    def __init__(
        self,
        task: Trace,
        lvlm: LoadedModel,
        item: Item[list[Line]],
        shown: Shown,
        ids: Tensor,
        keep: Keep | None,
    ) -> None:
        self._task = task
        self._lvlm = lvlm
        self._item = item
        self._shown = shown
        self._keep = keep
        self._tracked = task.tracked(lvlm)
        self._scores = WordScores(lvlm.parser, lvlm.sira.alpha, skip_thought=task.forced)
        positions = lvlm.find_image(ids[None])[0].nonzero().flatten().tolist()
        width, height = pictures_of(shown)[0].size
        run = {
            "type": "run",
            "schema": "sira.trace/1",
            "task": "caption" if task.question is None else "ask",
            "file_name": item.name,
            "image": {"path": item.picture.address, "sha256": item.sha256, "width": width, "height": height},
            "prompt": item.prompt,
            "preset": lvlm.preset.name,
            "model": lvlm.preset.model,
            "revision": lvlm.revision,
            "method": lvlm.method,
            "k": lvlm.k,
            "layers": lvlm.layers,
            "alpha": lvlm.alpha,
            "beta": lvlm.preset.sira.beta,
            **{name: value for name, value in task.decoding().items() if value is not None},
            "forced": task.forced,
            "top_k": task.top_k,
            "vocab_size": lvlm.model.get_output_embeddings().weight.shape[0],
            "prompt_tokens": len(ids),
            "image_tokens": len(positions),
            "image_positions": ranges(positions),
            "tracked": [{"word": word, "token_ids": ids} for word, ids in self._tracked.items()],
            "device": lvlm.device,
            "dtype": lvlm.dtype,
            "versions": {
                "sira": __version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
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
        line = {
            "type": "token",
            "step": len(self._lines) - 1,
            **chosen,
            "special": self._lvlm.vocabulary.is_special(token),
            "delta": chosen["full"]["logit"] - chosen["cf"]["logit"],
            "kl": float(kl_divergence(logprobs[0], logprobs[1])),
            "top": rows[: len(top)],
            "tracked": [{"word": word, **row} for word, row in tracked],
        }
        self._lines.append(line)
        self._scores.add([token], step)
        if self._keep is not None:
            self._keep(token, logits)

    def _rows(self, logits: Tensor, logprobs: Tensor, tokens: list[int]) -> list[Line]:
        """Describe each token in all views `[3, V]`: logit, logprob, rank (1 + number of larger logits).

        The infinite logit of a suppressed token is the most negative float32: JSON has no infinity.
        """
        ids = torch.tensor(tokens, device=logits.device)
        least = torch.finfo(torch.float32).min
        larger = torch.stack([(logits > logits[:, token, None]).sum(dim=1) for token in tokens], dim=1)  # [3, n]
        ranks = (1 + larger).tolist()
        picked = logits[:, ids].clamp(min=least).tolist()
        shares = logprobs[:, ids].clamp(min=least).tolist()
        rows = []
        for place, token in enumerate(tokens):
            row = {**self._lvlm.vocabulary.describe(token)}
            for view, logit, logprob, rank in zip(VIEWS, picked, shares, ranks, strict=True):
                row[view] = {"logit": logit[place], "logprob": logprob[place], "rank": rank[place]}
            rows.append(row)
        return rows

    def end(self) -> list[Line]:
        """Add the last line, and return all."""
        task = self._task
        lvlm = self._lvlm
        tokens = [line["token_id"] for line in self._lines[1:]]
        parsed = lvlm.parser.parse(tokens, skip_thought=task.forced)
        ended = lvlm.answer_of(tokens)
        error = "" if task.forced else ended.error
        end: Line = {
            "type": "end",
            "status": "error" if error else "ok",
            "error": f"{self._item.name}: {error}" if error else "",
            "text": parsed.text,
            "finish_reason": "forced" if task.forced else ended.finish_reason,
            "output_tokens": len(tokens),
            "duration_ms": 0.0,
            "words": self._scores.words(0, len(tokens)),
            "tracked": self._uses(tokens),
        }
        if parsed.reasoning:
            end["reasoning"] = parsed.reasoning
        if task.verify is not None:
            objects = SecondLook(lvlm, task.verify).check(self._shown, parsed.text).objects
            end["objects"] = [claim.to_json() for claim in objects]
            end["verify"] = task.verify.settings(lvlm.preset)
        return [*self._lines, end]

    def _uses(self, tokens: list[int]) -> list[Line]:
        """Return where the text continues with all tokens of a tracked word."""
        uses = []
        for word, ids in self._tracked.items():
            for step in range(len(tokens) - len(ids) + 1):
                if tokens[step : step + len(ids)] == ids:
                    lines = self._lines[1 + step : 1 + step + len(ids)]
                    logprobs = {view: sum(line[view]["logprob"] for line in lines) for view in VIEWS}
                    uses.append({"word": word, "step": step, **logprobs})
        return uses


def ranges(positions: Sequence[int]) -> list[list[int]]:
    """Return ascending positions as ranges, each with its first position and the one after its last."""
    found: list[list[int]] = []
    for position in positions:
        if not found or position != found[-1][1]:
            found.append([position, position])
        found[-1][1] = position + 1
    return found


@contextmanager
def logits_file(path: Path | None) -> Iterator[Keep | None]:
    """Yield a function that appends a token and its logits `[3, V]` to a safetensors file, or None without a path.

    The file holds `logits` float32 `[steps, 3, V]` (full, cf, contrast) and `token_ids` int64 `[steps]`. It is written
    step by step, so that memory does not grow with the text, and replaces `path` if the block ends without an error.
    """
    if path is None:
        yield None
        return
    tokens: list[int] = []
    end = 0  # of the logits, in bytes
    with replacing(path) as file:

        def append(token: int, logits: Tensor) -> None:
            nonlocal end
            with writing(path):
                end += file.write(logits.float().cpu().contiguous().numpy().tobytes())
            tokens.append(token)

        file.write(b" " * (8 + _HEADER))
        yield append
        steps = len(tokens)
        ids = file.write(struct.pack(f"<{steps}q", *tokens))  # bytes
        header = {
            "__metadata__": {"views": "full, cf, contrast"},
            "logits": {"dtype": "F32", "shape": [steps, 3, end // max(1, 12 * steps)], "data_offsets": [0, end]},
            "token_ids": {"dtype": "I64", "shape": [steps], "data_offsets": [end, end + ids]},
        }
        file.seek(0)
        file.write(struct.pack("<Q", _HEADER) + json.dumps(header).encode().ljust(_HEADER))
