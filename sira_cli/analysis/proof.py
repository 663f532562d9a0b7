"""A proof on the user's own model: does SIRA decode it as in the paper's Algorithm 1?

The first tokens about a picture are decoded by SIRA, and compared with `core.reference`: full passes without a cache,
with a mask instead of dropped rows, over the same weights.
"""

from __future__ import annotations

import inspect
import math
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from torch import Tensor
from transformers import GenerationConfig

from sira_cli._version import __version__
from sira_cli.core import reference
from sira_cli.core.config import SiraConfig
from sira_cli.core.families import FAMILIES, find_backbone, untested
from sira_cli.core.rules import RULED_OUT
from sira_cli.core.streams import Step
from sira_cli.errors import ImageTokenError, PictureError, SettingsError, UnsupportedModelError
from sira_cli.methods import METHODS, find
from sira_cli.methods.attaching import obeyed
from sira_cli.methods.base import Ability
from sira_cli.models.processor import refusing
from sira_cli.models.vocabulary import EndTokens
from sira_cli.run.lvlm import Lvlm
from sira_cli.run.reports import Report

TOKENS = 8  # compared
TIMED = 3  # decodings by each method, of which the fastest counts
TOLERANCE = 1e-4  # of the largest logit, in float32
ROUNDINGS = 4  # of it, in the precision of the weights
# Endings of names in generation_config.json.
NOT_DECODING: tuple[str, ...] = ("_token_id", "transformers_version", "_from_model_config")
NOT_DECODING += ("use_cache", "_attentions", "_states", "return_dict")


@dataclass(frozen=True)
class Seen:
    """A model's inputs from a picture and a prompt, and the text settings in its files."""

    image_token: str  # description of the image's token ids, or of the markers around them
    image_tokens: int  # in the prompt
    prompt_tokens: int  # all tokens of it
    prompt: str  # with special tokens; runs of one image token are shortened to a count
    end_tokens: dict[int, str]
    generation: dict[str, Any]  # settings of generation_config.json besides token ids
    in_force: list[str]  # those that `attach` with plain `generate` obeys; `sira` and `load` obey none

    @classmethod
    def of(cls, lvlm: Lvlm, inputs: Mapping[str, Any]) -> Seen:
        """Describe the inputs of a model about one picture."""
        model = lvlm.model
        tokenizer = lvlm.processor.tokenizer
        ids = inputs["input_ids"]
        folder = Path(model.name_or_path)
        generation = GenerationConfig.from_model_config(model.config)
        if (folder / "generation_config.json").is_file():
            generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
        finder = lvlm.sira.image_tokens.resolve(model.config)
        image = finder.find(ids)
        prompt = ""
        tokens = ids[0].tolist()
        for image_token, run in groupby(zip(tokens, image[0].tolist(), strict=True), key=_image_token):
            row = [token for token, _ in run]
            if image_token is None:
                prompt += tokenizer.decode(row)
            else:
                prompt += f"{tokenizer.convert_ids_to_tokens(image_token)} x {len(row)} "
        ends = EndTokens.of(model, tokenizer).ids
        return cls(
            image_token=str(finder),
            image_tokens=int(image.sum()),
            prompt_tokens=len(tokens),
            prompt=prompt,
            end_tokens={token: tokenizer.convert_ids_to_tokens(token) for token in ends},
            generation={
                name: value for name, value in generation.to_diff_dict().items() if not name.endswith(NOT_DECODING)
            },
            in_force=list(obeyed(generation)),
        )


def _image_token(pair: tuple[int, bool]) -> int | None:
    """Return the token of a pair if it is the image's: equal ones follow each other in a run, as do all others."""
    token, is_image = pair
    return token if is_image else None


@dataclass(frozen=True)
class Compared:
    """The result of a comparison on SIRA's own text."""

    tokens: int
    equal_tokens: bool  # the reference always picks the same token, or one whose logit is equal within the limit
    worst_full: float  # largest difference of logits in each stream
    worst_cf: float
    limit: float  # largest difference allowed, by the precision and the size of the logits
    gap: float  # largest difference between the two streams

    @property
    def verdict(self) -> str:
        """`exact`, `not exact`, or `not proven`: logits are not finite, or no late layer reads the image."""
        if not all(map(math.isfinite, (self.worst_full, self.worst_cf, self.limit, self.gap))):
            return "not proven"
        if not self.equal_tokens or max(self.worst_full, self.worst_cf) > self.limit:
            return "not exact"
        return "exact" if self.gap > self.limit else "not proven"

    def __str__(self) -> str:
        if not math.isfinite(self.worst_full + self.worst_cf):
            return "nothing was compared: some logits are no finite numbers (are the weights damaged?)"
        same = "the reference's" if self.equal_tokens else "NOT the reference's"
        apart = f"logits differ by {self.worst_full:.1e} (full), {self.worst_cf:.1e} (CF), limit {self.limit:.1e}"
        line = f"{self.tokens} tokens, {same}; {apart}; the streams by {self.gap:.2g}"
        return f"{line}: nothing was compared" if self.verdict == "not proven" else line


@dataclass(frozen=True)
class Exact:
    """The comparison of SIRA's first tokens, their text, and the seconds to decode them, prompt included."""

    compared: Compared
    text: str
    device: str
    dtype: str
    seconds_sira: float
    seconds_greedy: float


@dataclass(frozen=True)
class Proof(Report):
    """The facts about a model, and whether SIRA decodes it as in Algorithm 1; `layers`, `b`, `k` are L, b and K."""

    schema = "sira.proof/1"

    model: str
    revision: str
    family: str
    layers: int
    b: int
    k: int
    alpha: float
    seen: Seen
    abilities: list[str]
    real: Exact
    versions: dict[str, str]

    @property
    def verdict(self) -> str:
        """`exact`, `not exact` or `not proven`."""
        return self.real.compared.verdict

    def to_json(self) -> str:
        """Return everything as one JSON object; figures that are not finite are null."""
        return self.as_json({"verdict": self.verdict})

    def table(self) -> Iterator[str]:
        """Yield the lines of a block that can be pasted into a bug report."""
        seen = self.seen
        real = self.real
        share = real.seconds_sira / real.seconds_greedy
        settings = seen.generation.items()
        rows = {
            "model": f"{self.model}, revision {self.revision}",
            "family": self.family,
            "layers": f"L = {self.layers}, b = {self.b}, K = {self.k}, alpha = {self.alpha:g}",
            "image tokens": f"{seen.image_tokens} of {seen.prompt_tokens} tokens ({seen.image_token})",
            "prompt": repr(seen.prompt),
            "end tokens": ", ".join(f"{token!r} ({number})" for number, token in seen.end_tokens.items()) or "none",
            "its settings": ", ".join(f"{name}={value!r}" for name, value in settings) or "none",
            "in force": f"none in sira; with `attach`: {', '.join(seen.in_force) or 'none'}",
            "abilities": ", ".join(self.abilities),
            "real weights": f"{real.compared}; {real.dtype} on {real.device}",
            "text": repr(real.text),
            "time": f"{real.seconds_sira:.3g} s, {share:.2f} of greedy's {real.seconds_greedy:.3g} s",
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
            "verdict": self.verdict,
        }
        for name, value in rows.items():
            yield f"{name:<14}{value}"


def prove(lvlm: Lvlm, picture: Image.Image) -> Proof:
    """Decode a few tokens about a picture with SIRA, and compare them with the reference on the same weights."""
    preset = lvlm.preset.with_values(
        max_new_tokens=TOKENS, temperature=0.0, num_beams=1, repetition_penalty=1.0, no_repeat_ngram_size=0
    )
    greedy = lvlm.under(find("greedy"), preset)
    lvlm = lvlm.under(find("sira"), preset)
    try:
        with refusing("a drawn scene"):
            inputs = lvlm.to_device(lvlm.prepare([picture], [preset.prompts.caption]))
        seen = Seen.of(lvlm, inputs)
    except (ImageTokenError, PictureError) as error:
        raise UnsupportedModelError(str(error)) from error
    tokens: list[int] = []
    steps: list[Step] = []

    def keep(new: Sequence[int], step: Step) -> None:
        tokens.append(new[0])
        steps.append(step)

    lvlm.generate(inputs, on_tokens=keep)
    # bitsandbytes multiplies 4-bit matrices in bfloat16, and rounds rows as coarsely for 8-bit ones.
    precision = lvlm.model.dtype if lvlm.quantization is None else torch.bfloat16
    config = replace(preset.sira_config, k=lvlm.k, k_fraction=None)
    compared = compare(_prompt(lvlm, inputs), config, tokens, steps, precision)
    return Proof(
        model=preset.model,
        revision=preset.revision,
        family=_family(lvlm.model),
        layers=lvlm.layers,
        b=lvlm.layers - lvlm.k,
        k=lvlm.k,
        alpha=preset.sira.alpha,
        seen=seen,
        abilities=_abilities(lvlm),
        real=Exact(
            compared=compared,
            text=lvlm.processor.tokenizer.decode(tokens, skip_special_tokens=True),
            device=lvlm.device,
            dtype=lvlm.dtype,
            seconds_sira=_seconds(lvlm, inputs),
            seconds_greedy=_seconds(greedy, inputs),
        ),
        versions={
            "sira": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    )


def _abilities(lvlm: Lvlm) -> list[str]:
    """Return the abilities of SIRA, and the other methods that can decode the model."""
    abilities = [str(ability) for ability in Ability if ability in lvlm.decoder.abilities]
    for name, method in METHODS.items():
        if name != "sira":
            with suppress(UnsupportedModelError, SettingsError):
                method.check_model(lvlm.model, lvlm.preset.sira_config)
                abilities.append(f"method {name}")
    return abilities


def _family(model: Any) -> str:
    """Return a model's type, with the names of its families, or why it was not tested."""
    kind = str(model.config.model_type)
    if not find_backbone(model).tested:
        return f"{kind}: {untested(model)}"
    names = " or ".join(family.name for family in FAMILIES if family.model_type == kind)
    return f"{kind} ({names})" if names else kind


def _prompt(lvlm: Lvlm, inputs: Mapping[str, Any]) -> reference.Prompt:
    model = lvlm.model
    ids = inputs["input_ids"]
    given = dict(inputs)
    given.pop("labels", None)  # PaliGemma's, for training only
    mixers = find_backbone(model).mixers
    shares_keys = any(mixer.keys_from != index for index, mixer in enumerate(mixers))
    # All S rows of a large vocabulary are gigabytes; but Gemma 4 drops rows in layers that share keys.
    if "logits_to_keep" in inspect.signature(model.forward).parameters and not shares_keys:
        given["logits_to_keep"] = 1
    grown = {}
    for name, value in inputs.items():
        if name.endswith("token_type_ids") and value.shape == ids.shape:
            # PaliGemma's 0 is the prompt, whose rows see all of it.
            grown[name] = int(model.config.model_type == "paligemma")
    return reference.Prompt(model, given, lvlm.find_image(ids), grown)


def compare(
    prompt: reference.Prompt, config: SiraConfig, tokens: Sequence[int], steps: Sequence[Step], dtype: torch.dtype
) -> Compared:
    """Compare SIRA's decoding with the reference on the same text."""
    assert config.k is not None
    slow = reference.decode(prompt, config.k, config.alpha, len(steps), follow=tokens, beta=config.beta)
    full = torch.cat([step.full for step in steps])  # [T, V]
    cf = torch.cat([step.cf for step in steps])
    logits = torch.stack([slow.full, slow.cf])
    logits = logits[logits > RULED_OUT]
    largest = float(logits.abs().max()) if len(logits) else math.nan
    limit = max(TOLERANCE, ROUNDINGS * torch.finfo(dtype).eps) * largest
    same = all(
        token == picked or _tied(slow.full[step], slow.cf[step], token, picked, config, limit)
        for step, (token, picked) in enumerate(zip(tokens, slow.tokens, strict=False))
    )
    return Compared(
        tokens=len(steps),
        equal_tokens=same,
        worst_full=float((full - slow.full).abs().max()),
        worst_cf=float((cf - slow.cf).abs().max()),
        limit=limit,
        gap=float((slow.full - slow.cf).abs().max()),
    )


def _tied(
    full: Tensor,
    cf: Tensor,
    one: int,
    other: int,
    config: SiraConfig,
    limit: float,
) -> bool:
    """Return whether rounding alone may decide between two tokens, by both streams' logits `[V]`."""
    if config.beta is not None:
        cut = float(full.max()) + math.log(config.beta)
        if float(full[one]) < cut - 2 * limit:
            return False
        if other != int(full.argmax()) and abs(float(full[other]) - cut) <= 2 * limit:
            return True  # rounding decides whether it is cut off
    z_cd = (1 + config.alpha) * full - config.alpha * cf
    return abs(float(z_cd[one] - z_cd[other])) <= 2 * (1 + 2 * config.alpha) * limit


def _seconds(lvlm: Lvlm, inputs: Any) -> float:
    times = []
    for _ in range(TIMED):
        started = time.perf_counter()
        lvlm.generate(inputs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)
