"""A checkpoint's processor (tokenizer, image processor, chat template), loaded from its own files.

Several families' processors need a video processor, which needs torchvision. They are loaded without it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from transformers import AutoConfig, AutoProcessor
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name
from transformers.processing_utils import ProcessorMixin

from sira_cli.errors import HugePictureError, PictureError, SettingsError, SiraError, UnsupportedModelError
from sira_cli.methods.prompts import Prompt, pictures_of, turns_of
from sira_cli.models.chat import Chats, template_of
from sira_cli.models.preset import ImageSettings
from sira_cli.pictures.names import one_line

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

# Prompts from training, for families with checkpoints without a chat template: before the pictures, each, and after.
PROMPTS_WITHOUT_TEMPLATE = {
    "llava": ("USER: ", "<image>\n", "{prompt} ASSISTANT:"),
    "paligemma": ("", "<image>", "{prompt}"),
}


def load_processor(folder: Path, *, image: ImageSettings | None = None, trust_remote_code: bool = False) -> Any:
    """Load the processor of the checkpoint in `folder`, without its video part."""
    if trust_remote_code:
        processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True, local_files_only=True)
    else:
        with _todays_names(folder) as files:
            processor = _without_video(_processor_class(folder)).from_pretrained(
                files, local_files_only=True, trust_remote_code=False
            )
    if hasattr(processor, "num_additional_image_tokens"):
        _complete_counting(processor, folder, trust_remote_code)
    tokenizer = processor.tokenizer
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise UnsupportedModelError(
                f"the tokenizer in {folder} has neither a padding token nor an end token: name one in "
                "tokenizer_config.json (pad_token)"
            )
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"  # generation continues at the right end
    limit_size(processor, image or ImageSettings())
    return processor


def chat_inputs(
    processor: Any,
    model_type: str,
    images: Sequence[Shown],
    prompts: Sequence[Prompt],
    *,
    system: str = "",
    think: bool = False,
    at_once: bool = False,
    as_text: bool = False,
) -> Any:
    """Convert prompts with their pictures to the model's inputs, in the checkpoint's chat format, or to texts of it."""
    seen = [pictures_of(shown) for shown in images]
    check_pictures(processor, seen)
    template = template_of(processor)
    if template is None:
        if model_type not in PROMPTS_WITHOUT_TEMPLATE:
            raise UnsupportedModelError(
                "the checkpoint has no chat template (chat_template.jinja), so its prompt format is unknown: add one"
            )
        before, each, after = PROMPTS_WITHOUT_TEMPLATE[model_type]
        texts = []
        for prompt, own in zip(prompts, seen, strict=True):
            check_chat(processor, prompt, system)
            text = f"{system} " * bool(system) + turns_of(prompt)[0].text
            texts.append(f"{before}{each * len(own)}{after.format(prompt=text)}")
        return texts if as_text else processor(images=seen, text=texts, padding=True, return_tensors="pt")
    chats = Chats(processor, template, system, think=think and not at_once, at_once=at_once)
    said = [chats.chat(prompt, shown) for prompt, shown in zip(prompts, seen, strict=True)]
    how = {"chat_template": chats.template, "add_generation_prompt": True, **chats.switches}
    if as_text:
        return processor.apply_chat_template(said, tokenize=False, **how)
    settings = {"padding": True, **({"images": seen} if chats.plain else {})}
    how |= {"tokenize": True, "return_dict": True, "return_tensors": "pt", "processor_kwargs": settings}
    return processor.apply_chat_template(said, **how)


def check_chat(processor: Any, prompt: Prompt, system: str, pictures: int = 1) -> None:
    """Check that the checkpoint's chat format can hold all turns of a conversation, and all pictures of a message."""
    template = template_of(processor)
    if template is None:
        if len(turns_of(prompt)) == 1:
            return  # `PROMPTS_WITHOUT_TEMPLATE` takes any number of pictures, before the text
        raise SettingsError(
            "the checkpoint has no chat template, so it has no format for several turns: send one user message "
            "with one picture"
        )
    count = sum(turn.pictures for turn in turns_of(prompt, pictures))
    Chats(processor, template, system).chat(prompt, ["picture"] * count)


def pixel_library(processor: Any) -> str:
    """Return the library that makes a picture's pixels (torchvision, if installed and used), with its version.

    The two round differently: by up to 0.16, in units of the spread of pixels in training.
    """
    library = getattr(processor.image_processor, "backend", "pil").replace("pil", "pillow")
    return f"{library} {version(library)}"


def refused(name: str, error: Exception) -> PictureError:
    """Turn any error of an image processor into the picture's error."""
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return PictureError(f"{one_line(name)}: the image processor refused it: {reason[0]}")


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """Turn errors of an image processor inside this context into those of the picture of this name."""
    try:
        yield
    except SiraError:
        raise
    except Exception as error:
        raise refused(name, error) from error


def _processor_class(folder: Path) -> Any:
    """Return the class named in the files, in AutoProcessor's order; else that of the model type."""
    for file in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        name = read_settings(folder, file).get("processor_class")
        if name is not None:
            named = processor_class_from_name(name)
            if named is None:
                names = f"{folder / file} names the processor class {name!r}"
                raise UnsupportedModelError(f"{names}, which this transformers does not have")
            return _importable(named)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if type(config) not in PROCESSOR_MAPPING:
        raise UnsupportedModelError(
            f"{folder}: model type {config.model_type!r} has no processor for pictures and text"
        )
    return _importable(PROCESSOR_MAPPING[type(config)])


def _importable(named: Any) -> Any:
    """Return `named`, or the real class if transformers has a dummy because torchvision is missing.

    PixtralProcessor's module imports one function, not needed here, from the image processor that
    uses torchvision. The one that uses Pillow has the same function, and replaces it during the import.
    """
    if not getattr(named, "is_dummy", False):
        return named
    if named.__name__ != "PixtralProcessor":
        raise UnsupportedModelError(f"{named.__name__} needs torchvision: pip install torchvision")
    package = "transformers.models.pixtral"
    absent = f"{package}.image_processing_pixtral"
    stand_in = importlib.import_module(f"{package}.image_processing_pil_pixtral")
    sys.modules[absent] = stand_in
    try:
        return importlib.import_module(f"{package}.processing_pixtral").PixtralProcessor
    finally:
        del sys.modules[absent]


class _NoVideo(ProcessorMixin):
    """Base after a processor class in the order of bases: takes a video processor that is None out of its call."""

    def __init__(self, *args: Any, video_processor: None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call] # not annotated upstream


def _without_video(base: Any) -> Any:
    """Return a subclass of a processor class without a video processor."""
    if "video_processor" not in inspect.signature(base.__init__).parameters:
        return base

    def get_attributes(cls: type[Any]) -> list[str]:
        return [name for name in base.get_attributes() if name != "video_processor"]

    def from_args_and_dict(cls: type[Any], /, args: list[Any], settings: dict[str, Any], **more: Any) -> Any:
        # By name: `args` are the parts without the video processor, which may not be the last.
        parts = dict(zip(get_attributes(cls), args, strict=True))
        return base.from_args_and_dict.__func__(cls, [], settings, **parts, video_processor=None, **more)

    own = {
        "get_attributes": classmethod(get_attributes),
        "from_args_and_dict": classmethod(from_args_and_dict),
        # SmolVLM's own asks the video processor for its settings, then calls this one.
        "apply_chat_template": ProcessorMixin.apply_chat_template,
    }
    return type(base.__name__, (base, _NoVideo), own)


# Image processors that transformers has renamed: that of the first uploads of Qwen2.5-VL, and of models made of them.
RENAMED = {"Qwen2_5_VLImageProcessor": "Qwen2VLImageProcessor"}
SMALL = (".json", ".jinja", ".model", ".txt")  # endings of all files that a processor may need
# Vision towers that put a token before those of the patches. It is counted, even if it is dropped again.
CLASS_TOKENS = {"clip_vision_model": 1}


@contextmanager
def _todays_names(folder: Path) -> Iterator[Path]:
    """Yield a folder with the checkpoint's processor files, old names replaced; usually `folder` itself."""
    settings = read_settings(folder, "preprocessor_config.json")
    if settings.get("image_processor_type") not in RENAMED:
        yield folder
        return
    settings["image_processor_type"] = RENAMED[settings["image_processor_type"]]
    with tempfile.TemporaryDirectory() as place:
        for path in folder.iterdir():
            if path.is_file() and path.suffix in SMALL:
                shutil.copy(path, place)
        (Path(place) / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
        yield Path(place)


def read_settings(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of a checkpoint's JSON file; empty if the file does not exist."""
    path = folder / name
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def _complete_counting(processor: Any, folder: Path, trust_remote_code: bool) -> None:
    """Set what LLaVA's processors count image tokens by, where files from before autumn 2024 lack it."""
    stated = read_settings(folder, "processor_config.json")
    names = ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens")
    if all(stated.get(name) is not None for name in names):
        return
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    vision = getattr(config, "vision_config", None)
    known = {
        "patch_size": getattr(vision, "patch_size", None),
        "vision_feature_select_strategy": getattr(config, "vision_feature_select_strategy", None),
        "num_additional_image_tokens": CLASS_TOKENS.get(getattr(vision, "model_type", ""), 0),
    }
    for name, value in known.items():
        if stated.get(name) is None:
            if value is None:
                raise UnsupportedModelError(
                    f"{folder}: neither processor_config.json nor config.json has {name}, without which image tokens "
                    "cannot be counted: add it to processor_config.json"
                )
            setattr(processor, name, value)


def limit_size(processor: Any, settings: ImageSettings) -> None:
    """Set limits on a processor; transformers keeps the pixels of a resized picture as the edges of `size`."""
    if not settings.given().keys() - {"pad_to_square"}:
        return
    images = processor.image_processor
    options, size = images.valid_kwargs.__annotations__, dict(images.size or {})
    least, most, tiles, edge = settings.min_pixels, settings.max_pixels, settings.max_tiles, settings.longest_edge
    kind, has_edge = type(images).__name__, "longest_edge" in size

    def check(name: str, able: bool, given: int = 0, minimum: int = 0, unit: str = "") -> None:
        if not able:
            raise SettingsError(f"image.{name}: {kind} has no such limit")
        if given < minimum:
            raise SettingsError(f"image.{name}: {given} is below the processor's minimum of {minimum} {unit}")

    def set_option(name: str, value: Any) -> None:
        """Set an option, and the enclosing processor's default if it would override it."""
        setattr(images, name, value)
        processor.images_kwargs = {**(getattr(processor, "images_kwargs", None) or {}), name: value}

    if least is not None or most is not None:
        check("min_pixels" if most is None else "max_pixels", "max_pixels" in options and has_edge)
        if least is not None:
            check("min_pixels", True, least, (images.patch_size * images.merge_size) ** 2, "pixels")
            size["shortest_edge"] = least
        if most is not None:
            check("max_pixels", True, most, size["shortest_edge"], "pixels (min_pixels)")
            size["longest_edge"] = most
        if size["shortest_edge"] > size["longest_edge"]:
            raise SettingsError(
                f"image.min_pixels: {size['shortest_edge']} is more than the {size['longest_edge']} that {kind} "
                "shrinks pictures to: also give max_pixels"
            )
        images.size = size
    if tiles is not None:
        check("max_tiles", "max_patches" in options)
        check("max_tiles", True, tiles, images.min_patches, "tiles")
        set_option("max_patches", tiles)
    if edge is not None:
        tile = dict(getattr(images, "max_image_size", None) or {}).get("longest_edge", 1)  # SmolVLM, Idefics3
        check("longest_edge", has_edge and "max_pixels" not in options, edge, tile, "pixels, one tile")
        images.size = {"longest_edge": edge}
    if settings.pan_and_scan is not None:
        check("pan_and_scan", "do_pan_and_scan" in options)
        set_option("do_pan_and_scan", settings.pan_and_scan)


def pad_to_square(shown: Shown, mean: Sequence[float]) -> list[Image.Image]:
    """Pad pictures to squares with bars of one colour, as LLaVA-1.5's authors do."""
    squares, most = [], 2 * (Image.MAX_IMAGE_PIXELS or 0)  # as where pictures are opened
    for picture in pictures_of(shown):
        side = max(picture.size)
        if most and side**2 > most:
            raise HugePictureError(
                f"padded to a square, a picture of {picture.width} x {picture.height} would have {side**2:,} pixels; "
                f"expected at most {most:,}"
            )
        square = Image.new(picture.mode, (side, side), tuple(int(255 * channel) for channel in mean))
        square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
        squares.append(square)
    return squares


MOST = 2**24  # pixels of a picture resized by its shorter edge; Qwen3-VL's limit, the largest of all
MOST_SQUARE = 2**27  # pixels of the square into which a picture is put before it is resized


def check_pictures(processor: Any, images: Sequence[Shown]) -> None:
    """Check that the checkpoint's image processor does not make a picture too large."""
    for width, height in (picture.size for shown in images for picture in pictures_of(shown)):
        for (new_width, new_height), most in _sizes(processor.image_processor, width, height):
            if new_width * new_height > most:
                raise ValueError(
                    f"its {width:,} x {height:,} pixels would become {new_width:,} x {new_height:,}, and {most:,} "
                    "pixels are the limit: crop it, or scale its longer side down"
                )


def _sizes(image_processor: Any, width: int, height: int) -> list[tuple[tuple[int, int], int]]:
    """Return a picture's sizes during processing that depend on its shape, each with its limit."""
    found = []
    if type(image_processor).__name__.startswith("LlavaImageProcessor") and image_processor.do_pad:
        width = height = max(width, height)
        found.append(((width, height), MOST_SQUARE))
    size = {name for name, value in dict(getattr(image_processor, "size", None) or {}).items() if value}
    tiled = hasattr(image_processor, "image_grid_pinpoints")  # LLaVA-NeXT resizes only squares by their edge
    if size == {"shortest_edge"} and not tiled and image_processor.do_resize:
        short = image_processor.size["shortest_edge"]
        long = short * max(width, height) // min(width, height)
        found.append(((short, long) if width <= height else (long, short), MOST))
    return found
