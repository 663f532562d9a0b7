"""The text settings in a checkpoint's files, and its processor's inputs for a picture."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image
from safetensors import SafetensorError, safe_open
from transformers import GenerationConfig

from sira_cli.core.families import FAMILIES, text_stack, untested
from sira_cli.core.image_tokens import ImageTokenFinder
from sira_cli.errors import SettingsError, UnsupportedModelError
from sira_cli.methods import METHODS, find
from sira_cli.methods.attaching import obeyed
from sira_cli.methods.base import Ability
from sira_cli.models.chat import check_thinking
from sira_cli.models.load import reading
from sira_cli.models.preset import Preset
from sira_cli.models.processor import chat_inputs, load_processor, pad_to_square, refusing
from sira_cli.models.vocabulary import EndTokens

_LAYER = re.compile(r"^(?:.*\.)?layers\.(\d+)\.")
_TOWER = re.compile(r"vis|audio|image|sam|clip|tower", re.IGNORECASE)


@dataclass(frozen=True)
class Seen:
    """A model's inputs from a picture and a prompt, and the text settings in its files.

    Attributes:
        image_token: description of the image's token ids, or of the markers around them.
        image_tokens: number of image tokens in the prompt; `prompt_tokens`: of all tokens.
        prompt: text with special tokens; runs of one image token are shortened to a count.
        end_tokens: tokens that end a text, by id.
        generation: settings of generation_config.json besides token ids.
        in_force: which of these settings `attach` with plain `generate` obeys; `sira` and `load` obey none.
    """

    image_token: str
    image_tokens: int
    prompt_tokens: int
    prompt: str
    end_tokens: dict[int, str]
    generation: dict[str, Any]
    in_force: list[str]


def what_is_seen(
    folder: Path, model: Any, preset: Preset, picture: Image.Image
) -> tuple[Seen, dict[str, Any], ImageTokenFinder]:
    """Put a picture and the preset's caption prompt through a checkpoint's processor."""
    with reading(folder):
        processor = load_processor(folder, image=preset.image)
        generation = _generation(folder, model)
    tokenizer = processor.tokenizer
    finder = preset.image_tokens.with_ids(tokenizer).resolve(model.config)
    if preset.generation.think:
        check_thinking(processor, preset.prompts.system)
    kind, prompts, think = model.config.model_type, preset.prompts, preset.generation.think
    with refusing("a drawn scene"):
        shown = pad_to_square(picture, processor.image_processor.image_mean) if preset.image.pad_to_square else picture
        inputs = dict(chat_inputs(processor, kind, [shown], [prompts.caption], system=prompts.system, think=think))
    ids = inputs["input_ids"]
    image = finder.find(ids)
    model.generation_config = generation
    ends = EndTokens.of(model, tokenizer).ids
    seen = Seen(
        str(finder),
        int(image.sum()),
        ids.shape[1],
        _shown(tokenizer, ids[0].tolist(), image[0].tolist()),
        {token: tokenizer.convert_ids_to_tokens(token) for token in ends},
        {name: value for name, value in generation.to_diff_dict().items() if not name.endswith(_NOT_DECODING)},
        list(obeyed(generation)),
    )
    return seen, inputs, finder


_NOT_DECODING = (  # endings of names
    *("_token_id", "transformers_version", "_from_model_config", "use_cache", "_attentions", "_states", "return_dict"),
)


def structure_of(model: Any, preset: Preset, tested: bool) -> tuple[str, list[str]]:
    """Return the family of a model without weights, and its abilities under SIRA."""
    kind = model.config.model_type
    names = [family.name for family in FAMILIES if family.model_type == kind]
    known = f"{kind} ({' or '.join(names)})" if names else kind
    family = known if tested else f"{kind}: {untested(model)}"
    sira = find("sira")
    able = [str(ability) for ability in Ability if ability in sira.abilities]
    methods = [f"method {name}" for name, method in METHODS.items() if name != "sira" and _runs(method, model, preset)]
    return family, [*able, *methods]


def _runs(method: Any, model: Any, preset: Preset) -> bool:
    try:
        method.check_model(model, preset.sira_config)
    except (UnsupportedModelError, SettingsError):
        return False
    return True


def check_layers(folder: Path, model: Any) -> None:
    """Check that the weights hold the decoder layers of config.json, by the names of their tensors."""
    stated = len(text_stack(model).layers)
    found = {int(named[1]) for name in _tensors(folder) if not _TOWER.search(name) and (named := _LAYER.match(name))}
    if found and not stated <= max(found) + 1 <= stated + _extra(model):
        raise UnsupportedModelError(
            f"{folder / 'config.json'}: states {stated} decoder layers, but the weights hold {max(found) + 1}: "
            "use the config.json of these weights"
        )


def _extra(model: Any) -> int:
    """Return the number of layers for multi-token prediction that may follow the decoder's."""
    text = model.config.get_text_config(decoder=True)
    return int(getattr(text, "num_nextn_predict_layers", None) or 0)


def _tensors(folder: Path) -> list[str]:
    """Return the names of tensors that are known without reading weights; none for damaged files."""
    names: list[str] = []
    try:
        for index in folder.glob("*.safetensors.index.json"):
            return list(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        for path in folder.glob("*.safetensors"):
            with safe_open(path, "pt") as file:
                names += file.keys()
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return []
    return names


def _generation(folder: Path, model: Any) -> GenerationConfig:
    if (folder / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    return GenerationConfig.from_model_config(model.config)


def _shown(tokenizer: Any, ids: list[int], image: list[bool]) -> str:
    """Return a prompt with its special tokens; a run of one image token becomes the token and a count."""
    parts = []
    for (is_image, token), run in groupby(
        zip(image, ids, strict=True), key=lambda pair: (pair[0], pair[1] if pair[0] else None)
    ):
        tokens = [each for _, each in run]
        parts.append(
            f"{tokenizer.convert_ids_to_tokens(token)} x {len(tokens)} " if is_image else tokenizer.decode(tokens)
        )
    return "".join(parts)
