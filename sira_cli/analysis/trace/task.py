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
        tracked = {word: lvlm.vocabulary.encode_inside(word) for word in self.track}
        if without := next((word for word, ids in tracked.items() if not ids), None):
            raise SettingsError(f"`track=`: {without!r} has no tokens")
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
            rows = zip(batch.items, batch.images, inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)
            recorders = [
                Recorder(self, lvlm, item, shown, ids[live], files.enter_context(logits_file(self.full_logits)))
                for item, shown, ids, live in rows
            ]
            if not self.forced:
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

    def settle(self, lvlm: LoadedModel, item: Item[list[Line]], answer: list[Line], milliseconds: float = 0) -> None:
        """Give an item its lines."""
        answer[-1]["duration_ms"] = round(milliseconds, 1)
        item.result = answer

    def fail(self, lvlm: LoadedModel, item: Item[list[Line]], error: Exception) -> None:
        """Give an item the line of a picture that failed."""
        super().fail(lvlm, item, error)
        failed = {"type": "end", "status": "error", "error": item.error, "text": "", "finish_reason": "error"}
        item.result = [{**failed, "output_tokens": 0, "duration_ms": 0.0, "words": [], "tracked": []}]


class Recorder:
    """Makes the lines of one trace, of a prompt `[S]` without padding."""

    def __init__(
        self, task: Trace, lvlm: LoadedModel, item: Item[list[Line]], shown: Shown, ids: Tensor, keep: Keep | None
    ) -> None:
        self._task, self._lvlm, self._item, self._shown, self._keep = task, lvlm, item, shown, keep
        self._tracked = task.tracked(lvlm)
        self._scores = WordScores(lvlm.parser, lvlm.sira.alpha, skip_thought=task.forced)
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
            **{name: value for name, value in task.decoding().items() if value is not None},
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
        parsed, ended = lvlm.parser.parse(tokens, skip_thought=task.forced), lvlm.answer_of(tokens)
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
