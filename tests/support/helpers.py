"""Small pieces that several tests use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast
from transformers.generation.streamers import BaseStreamer

from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.fork import Step, attach
from sira_cli.models.vocabulary import Vocabulary
from sira_cli.run.lvlm import Lvlm
from tests.support import tiny

SIRA = shutil.which("sira") or str(Path(sys.executable).parent / "sira")


def mostly_slow(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Return the cases for `parametrize`: `quick` ones are in every run, the others alike in `.ci/nightly`'s."""
    cases = list(cases)
    assert all(case in cases for case in quick), f"{quick}: not all are among {cases}"
    return [
        case if case in quick else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]


def under(lvlm: Lvlm, method: str | None = None, **settings: Any) -> Lvlm:
    """The same model with other settings of its preset, perhaps under another method."""
    preset = lvlm.preset.with_values(**settings)
    return lvlm.under(method or lvlm.method, preset)


def learned_vocabulary(kind: str, corpus: list[str]) -> Vocabulary:
    """A tokenizer that has learned a corpus: of `bytes`, as GPT-2's; or of `pieces`, as of SentencePiece."""
    if kind == "bytes":
        made, settings, more = Tokenizer(models.BPE()), {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}, {}
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        made, more = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>")), {"unk_token": "<unk>"}
        settings = {"special_tokens": ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]}
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    size = 420 if kind == "bytes" else 556
    made.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, **settings))
    # Bytes are no special tokens: a text may hold them.
    return Vocabulary(PreTrainedTokenizerFast(tokenizer_object=made, **more))


def installed(*args: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run([SIRA, *map(str, args)], capture_output=True, timeout=120, check=False, **options)


def open_terminal() -> tuple[int, int]:
    """The descriptors of a new terminal: of the one who watches it, and of the terminal itself."""
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals, as Windows")
    return pty.openpty()


def on_terminal(*args: object, **environment: object) -> list[bytes]:
    """What a command writes to a terminal on stdout, piece by piece. It must end well."""
    controller, terminal = open_terminal()
    variables = {**os.environ, "TERM": "dumb", **{name: str(value) for name, value in environment.items()}}
    command = [SIRA, *map(str, args)]
    pieces = []
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE, env=variables) as process:
        os.close(terminal)
        with suppress(OSError):  # the terminal is gone
            while piece := os.read(controller, 1024):
                pieces.append(piece)
    os.close(controller)
    assert process.returncode == 0
    return pieces


def generate(model: Any, inputs: dict[str, Tensor], **settings: Any) -> Tensor:
    """New tokens `[B, T]` of plain greedy generation, unless `settings` say otherwise."""
    settings = {"do_sample": False, "max_new_tokens": 6, "eos_token_id": None, **settings}
    output = model.generate(**inputs, suppress_tokens=tiny.SUPPRESS, **settings)
    return output[:, inputs["input_ids"].shape[1] :]


def generate_sira(
    model: Any, inputs: dict[str, Tensor], config: SiraConfig | None = None, **settings: Any
) -> tuple[Tensor, list[Step]]:
    steps: list[Step] = []
    with attach(model, config or SiraConfig(k=3), on_step=steps.append):
        return generate(model, inputs, **settings), steps


class Listener(BaseStreamer):
    """Keeps what `generate` streams, and calls a function with the number of parts so far; the first is the prompt."""

    def __init__(self, then: Callable[[int], object] = lambda number: None) -> None:
        self.parts, self._then = list[list[int]](), then

    def put(self, value: Tensor) -> None:
        self.parts.append(value.flatten().tolist())
        self._then(len(self.parts))

    def end(self) -> None:
        self.parts.append([])


def hooks(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._forward_hooks_with_kwargs)
        for module in model.modules()
    )


def left_pad(prompts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Single prompts as one batch: per-token inputs padded on the left, pictures stacked."""
    longest = max(prompt["input_ids"].shape[1] for prompt in prompts)
    batch = {}
    for name in prompts[0]:
        rows = [prompt[name] for prompt in prompts]
        if rows[0].shape == prompts[0]["input_ids"].shape:  # [1, S]
            rows = [F.pad(row, (longest - row.shape[1], 0), value=0) for row in rows]
        batch[name] = torch.cat(rows)
    return batch


def equal_streams(steps: Iterable[Step], expected: Any, atol: float = 1e-4, row: int = 0) -> float:
    """A row's logits of both streams are those of a reference, with `full` and `cf` `[T, V]`; return the worst gap."""
    worst, steps = 0.0, list(steps)
    for view in ("full", "cf"):
        found, wanted = torch.stack([getattr(step, view)[row] for step in steps]), getattr(expected, view)
        torch.testing.assert_close(found, wanted, atol=atol, rtol=0)
        worst = max(worst, float((found - wanted).abs().max()))
    return worst


def by_the_letter(
    lvlm: Any, inputs: Any, count: int, *, model: Any = None, k: int = 0, atol: float = 1e-3, gap: float = 0.01
) -> None:
    """The first tokens, and both streams' logits, are those of Algorithm 1 on the loaded model, or on another one."""
    model, ids, steps = model or lvlm.model, inputs["input_ids"], list[Step]()
    (image_token,) = {*ids[lvlm.find_image(ids)].tolist()}
    grown = dict.fromkeys({"mm_token_type_ids", "token_type_ids"} & {*inputs}, 0)
    if model.config.model_type == "paligemma":
        grown["token_type_ids"] = 1  # the prompt is a prefix, what follows is causal
    shown = {name: value for name, value in inputs.items() if name != "labels"}  # which PaliGemma's processor adds
    case = tiny.Tiny(model, shown, grown, image_token=image_token)
    expected = reference.decode(case, k or lvlm.k, lvlm.alpha, count)
    tokens = lvlm.generate(inputs, on_tokens=lambda _, step: steps.append(step))
    assert tokens[0, :count].tolist() == expected.tokens
    equal_streams(steps[:count], expected, atol)
    assert float((expected.full - expected.cf).abs().max()) > gap


def compared(
    case: tiny.Tiny, config: SiraConfig, steps: int = 6, caches: tuple[bool, ...] = (True, False)
) -> tuple[float, float]:
    """Decode as Algorithm 1 does, with a cache and without: the worst difference, and that between the streams."""
    expected, worst, alpha = reference.decode(case, config.k or 1, config.alpha, steps), 0.0, config.alpha
    # Without a cache, `generate` itself fails for Ernie, with a fork or not, and for Cosmos until transformers 5.22.
    broken = case.model.config.model_type in ("cosmos3_edge", "ernie4_5_vl_moe")
    for use_cache in caches if not broken else (True,):
        rows, found = generate_sira(case.model, case.inputs, config, max_new_tokens=steps, use_cache=use_cache)
        assert rows[0].tolist() == expected.tokens
        worst = max(worst, equal_streams(found, expected))
        full, cf = (each.clamp(min=-1e30) for each in (expected.full, expected.cf))  # Chameleon rules tokens out
        contrast = (1 + alpha) * full - alpha * cf
        torch.testing.assert_close(torch.cat([step.contrast for step in found]), contrast, atol=3e-4, rtol=1e-5)
    # A contrast of a model with itself would pass everything above with alpha = 0, and only then.
    gap = float((expected.full - expected.cf).abs().max())
    assert gap > 0.005
    return worst, gap


def batch_equals_singles(
    model: Any, singles: list[dict[str, Tensor]], k: int, atol: float, batch: Any = None, **settings: Any
) -> None:
    """Each row of a left-padded batch has the text and both streams' logits of its prompt alone."""
    tokens, steps = generate_sira(model, left_pad(singles) if batch is None else batch, SiraConfig(k=k), **settings)
    for row, single in enumerate(singles):
        own, alone = generate_sira(model, single, SiraConfig(k=k), **settings)
        assert tokens[row].tolist() == own[0].tolist()
        for one, other in zip(steps, alone, strict=True):
            torch.testing.assert_close(one.full[row], other.full[0], atol=atol, rtol=0)
            torch.testing.assert_close(one.cf[row], other.cf[0], atol=atol, rtol=0)


def slow_contrast(
    case: tiny.Tiny, k: int, alpha: float, log_softmax: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:
    """The contrast recomputed at every step from the whole sequence: two uncached forwards a row.

    Put into a plain `generate`, it turns whatever that does (sampling, beams, penalties) into an
    independent reference for the same call under `attach`.
    """

    @torch.no_grad()
    def row(ids: Tensor) -> Tensor:
        inputs, image = dict(case.inputs), case.image
        for token in ids[image.shape[1] :].tolist():
            inputs = reference.extend(inputs, token, case.grown)
        z_full = case.model(**inputs, use_cache=False).logits[0, -1].float()
        z_cf = reference.counterfactual(case.model, inputs, inputs["input_ids"] == tiny.IMAGE, k)
        return (1 + alpha) * z_full - alpha * z_cf

    def processor(input_ids: Tensor, scores: Tensor) -> Tensor:
        z_cd = torch.stack([row(ids) for ids in input_ids])
        if log_softmax:  # as a beam search does, before `suppress_tokens`
            z_cd = z_cd.log_softmax(-1)
        return z_cd.index_fill(1, torch.tensor(tiny.SUPPRESS), -torch.inf)

    return processor
