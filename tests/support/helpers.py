"""Tiny models by name, their prompts, ways to decode and compare them; and other pieces that several tests use."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
from sira_cli.methods.base import Method, PromptBatch
from sira_cli.methods.calibrated import Calibrated, Calibration, Origin
from sira_cli.models.vocabulary import Vocabulary
from sira_cli.run.lvlm import Lvlm
from tests.support import census, tiny
from tests.support.tiny import Tiny

SIRA = shutil.which("sira") or str(Path(sys.executable).parent / "sira")
ROLE = torch.tensor([[33, 44, 55]])  # what stands for icd's role in front of a prompt
_FOLDER = tempfile.TemporaryDirectory(prefix="sira-calibrations-")


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


def imported(*args: object) -> tuple[int, set[str], str]:
    """Run a command in a process of its own: its exit code, the modules that it imported, and its stderr."""
    script = "import sys; from sira_cli.cli import main\ntry: main()\nfinally: print(chr(10), *sys.modules)"
    command = [sys.executable, "-c", script, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, {*done.stdout.splitlines()[-1].split()}, done.stderr


def on_terminal(*args: object, **environment: object) -> list[bytes]:
    """What a command writes to a terminal, piece by piece. It must end well."""
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals, as Windows")
    controller, terminal = pty.openpty()
    variables = {**os.environ, "TERM": "dumb", **{name: str(value) for name, value in environment.items()}}
    pieces = []
    with subprocess.Popen([SIRA, *map(str, args)], stdout=terminal, stderr=terminal, env=variables) as process:
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


def loaded(lvlm: Any, inputs: Any, model: Any = None) -> Tiny:
    """A loaded model, or another one, with prepared inputs of it, as the reference takes them."""
    model, ids = model or lvlm.model, inputs["input_ids"]
    (image_token,) = {*ids[lvlm.find_image(ids)].tolist()}
    grown = dict.fromkeys({"mm_token_type_ids", "token_type_ids"} & {*inputs}, 0)
    if model.config.model_type == "paligemma":
        grown["token_type_ids"] = 1  # the prompt is a prefix, what follows is causal
    shown = {name: value for name, value in inputs.items() if name != "labels"}  # which PaliGemma's processor adds
    return Tiny(model, shown, grown, image_token=image_token)


def by_the_letter(
    lvlm: Any, inputs: Any, count: int, *, model: Any = None, k: int = 0, atol: float = 1e-3, gap: float = 0.01
) -> None:
    """The first tokens, and both streams' logits, are those of Algorithm 1 on the loaded model, or on another one."""
    steps, expected = list[Step](), reference.decode(loaded(lvlm, inputs, model), k or lvlm.k, lvlm.alpha, count)
    tokens = lvlm.generate(inputs, on_tokens=lambda _, step: steps.append(step))
    assert tokens[0, :count].tolist() == expected.tokens
    equal_streams(steps[:count], expected, atol)
    assert float((expected.full - expected.cf).abs().max()) > gap


def compared(
    case: Tiny, config: SiraConfig, steps: int = 6, caches: tuple[bool, ...] = (True, False)
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


def slow_contrast(case: Tiny, k: int, alpha: float, log_softmax: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
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


@functools.cache
def case_of(name: str) -> Tiny:
    """A family, or a type of the census; each is built once, and no test may change it."""
    return tiny.FAMILIES[name]() if name in tiny.FAMILIES else census.case_of(name)


def silenced(case: Tiny) -> Tiny:
    """Let a model never say an image token, not even as a candidate of OPERA: the reference would miss its picture."""
    dead = torch.tensor([*tiny.SUPPRESS, *case.silent])
    case.model.get_output_embeddings().register_forward_hook(lambda *hook: hook[-1].index_fill(-1, dead, -1e4))
    return case


# --- prompts


def family_prompts(name: str, case: Tiny) -> list[dict[str, Tensor]]:
    """Three prompts of a family: other text, other lengths, other pictures, and for Qwen pictures of three sizes."""
    if name == "LLaVA-1.5":  # the last one holds two images with text between them
        two = torch.cat([tiny.prompt(before=3, after=4, seed=3), tiny.prompt(before=2, after=1, seed=4)], dim=1)
        texts = [tiny.prompt(before=5, after=9, seed=1), tiny.prompt(before=0, after=2, seed=2), two]
        pixels = [tiny.pixels(1 + (index == 2), 3, 32, 32, seed=index + 1) for index in range(3)]
        return [tiny.with_mask(ids, pixel_values=shown) for ids, shown in zip(texts, pixels, strict=True)]
    if name.startswith("Qwen"):
        shapes = [((1, 8, 8), 16, 5, 9), ((1, 6, 16), 24, 2, 4), ((1, 4, 4), 4, 7, 2)]
        return [
            tiny.qwen_inputs(tiny.prompt(*counts, seed=index), grid, seed=index)
            for index, (grid, *counts) in enumerate(shapes)
        ]
    prompts = []
    for index, (before, after) in enumerate([(5, 9), (0, 3), (14, 2)]):
        ids = tiny.prompt(int(case.image.sum()), before, after, seed=index)
        kinds = {kind: (ids == tiny.IMAGE).long() for kind in case.grown}
        pixels = tiny.pixels(*case.inputs["pixel_values"].shape, seed=index)
        prompts.append({**case.inputs, **tiny.with_mask(ids, pixel_values=pixels, **kinds)})
    return prompts


def with_role(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The prompt of one row behind a few tokens more."""
    longer = dict(inputs)
    for name in [name for name, value in inputs.items() if value.shape == inputs["input_ids"].shape]:
        longer[name] = F.pad(inputs[name], (3, 0), value=int(name == "attention_mask"))
    longer["input_ids"][:, :3] = ROLE
    return longer


# --- methods


def strong(method: Calibrated, model: object) -> dict[str, Tensor]:
    """A calibration's tensors, such that the method changes what a tiny model says."""
    tensors = method.stand_in(model)
    return {name: torch.full_like(value, 2.0) if name.endswith("spread") else value for name, value in tensors.items()}


def calibrated_for(method: Method, model: object, revision: str = "tiny") -> Method:
    """The method with a calibration of a tiny model, if it needs one."""
    if not isinstance(method, Calibrated) or method.calibration is not None:
        return method
    path = Path(_FOLDER.name) / f"{method.name}-{id(model)}-{revision}.safetensors"
    if not path.exists():
        Calibration(Origin(method.name, "tiny", revision, {}, "0"), strong(method, model)).write(path)
    return replace(method, calibration=str(path))


def stub(case: Tiny) -> SimpleNamespace:
    """The part of an `Lvlm` that branches need, but for icd's processor."""
    return SimpleNamespace(find_image=lambda ids: ids == tiny.IMAGE, model=case.model)


def branch_of(method: Method, case: Tiny) -> dict[str, Tensor]:
    """The branch's inputs as the method makes them; icd's by hand."""
    if method.name == "icd":
        return with_role(case.inputs)
    return method.branch_inputs(PromptBatch(stub(case), case.inputs, [0] * len(case.inputs["input_ids"])))


@contextmanager
def attached(method: Method, case: Tiny, branch: dict | None = None):
    branch = branch_of(method, case) if branch is None else branch
    method = calibrated_for(method, case.model)
    with method.attach(case.model, SiraConfig(k=3, beta=0.5), case.inputs["input_ids"], branch) as run:
        yield run


def decoded(method: Method, case: Tiny, branch: dict | None = None, **settings):
    """Tokens `[B, T]` and scores before processors `[T, B, V]` of `generate` under a method."""
    settings = {"do_sample": False, "max_new_tokens": 6, "eos_token_id": None, **settings}
    with attached(method, case, branch):
        output = case.model.generate(
            **case.inputs, suppress_tokens=tiny.SUPPRESS, return_dict_in_generate=True, output_logits=True, **settings
        )
    return output.sequences[:, case.image.shape[1] :], torch.stack(output.logits)
