"""A checkpoint's processor (tokenizer, image processor, chat template), loaded from its own files.

Several families' processors need a video processor, which needs torchvision. They are loaded without it.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoProcessor
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name
from transformers.processing_utils import ProcessorMixin

from sira_cli.errors import PictureError, SettingsError, SiraError, UnsupportedModelError
from sira_cli.methods.prompts import Prompt, pictures_of, turns_of
from sira_cli.models.inputs.chats import Chats, template_of
from sira_cli.models.inputs.completing import complete_processor, read_settings, todays_names
from sira_cli.models.inputs.image_size import limit_size
from sira_cli.models.inputs.picture_sizes import check_picture_size
from sira_cli.models.loading.preset_parts import ImageSettings
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
        with todays_names(folder) as files:
            processor = _without_video(_processor_class(folder)).from_pretrained(
                files, local_files_only=True, trust_remote_code=False
            )
    complete_processor(processor, folder, trust_remote_code=trust_remote_code)
    limit_size(processor, image or ImageSettings())
    processor.tokenizer.padding_side = "left"  # generation continues at the right end
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
) -> Any:
    """Convert prompts with their pictures to the model's inputs, in the checkpoint's chat format."""
    seen = [pictures_of(shown) for shown in images]
    check_pictures(processor, seen)
    template = template_of(processor)
    if template is None:
        if model_type not in PROMPTS_WITHOUT_TEMPLATE:
            raise UnsupportedModelError(
                "the checkpoint has no chat template (chat_template.jinja), so its prompt format is unknown: add one"
            )
        for prompt in prompts:
            check_chat(processor, prompt, system)
        words = [turns_of(prompt)[0].text for prompt in prompts]
        said = [f"{system} {text}" if system else text for text in words]
        before, each, after = PROMPTS_WITHOUT_TEMPLATE[model_type]
        texts = [
            f"{before}{each * len(own)}{after.format(prompt=prompt)}" for prompt, own in zip(said, seen, strict=True)
        ]
        return processor(images=seen, text=texts, padding=True, return_tensors="pt")
    chats = Chats(processor, template, system, think=think and not at_once, at_once=at_once)
    images_apart = {"images": seen} if chats.plain else {}
    return processor.apply_chat_template(
        [chats.chat(prompt, shown) for prompt, shown in zip(prompts, seen, strict=True)],
        chat_template=chats.template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"padding": True, **images_apart},
        **chats.switches,
    )


def check_pictures(processor: Any, images: Sequence[Shown]) -> None:
    """Check that the checkpoint's image processor does not make a picture too large."""
    for shown in images:
        for image in pictures_of(shown):
            check_picture_size(processor.image_processor, *image.size)


def check_chat(processor: Any, prompt: Prompt, system: str, pictures: int = 1) -> None:
    """Check that the checkpoint's chat format can hold all turns of a conversation, and all pictures of a message."""
    template = template_of(processor)
    if template is None and len(turns_of(prompt)) == 1:
        return  # `PROMPTS_WITHOUT_TEMPLATE` takes any number of pictures, before the text
    if template is None:
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
    library = getattr(processor.image_processor, "backend", "pil")
    library = {"pil": "pillow"}.get(library, library)
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
                raise UnsupportedModelError(
                    f"{folder / file} names the processor class {name!r}, which this transformers does not have"
                )
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
    """Base after a processor class in the order of bases: removes a video processor that is None from its call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(  # type: ignore[no-untyped-call] # not annotated upstream
            *args, **{name: part for name, part in kwargs.items() if (name, part) != _NONE}
        )


_NONE = ("video_processor", None)


def _without_video(base: Any) -> Any:
    """Return a subclass of a processor class without a video processor."""
    if "video_processor" not in inspect.signature(base.__init__).parameters:
        return base

    def get_attributes(cls: type[Any]) -> list[str]:
        return [name for name in base.get_attributes() if name != "video_processor"]

    def from_args_and_dict(cls: type[Any], /, args: list[Any], settings: dict[str, Any], **more: Any) -> Any:
        # By name: `args` are the parts without the video processor, which may not be the last.
        parts = dict(zip(get_attributes(cls), args, strict=True))
        made = base.from_args_and_dict.__func__
        return made(cls, [], settings, **parts, video_processor=None, **more)

    return type(
        base.__name__,
        (base, _NoVideo),
        {
            "get_attributes": classmethod(get_attributes),
            "from_args_and_dict": classmethod(from_args_and_dict),
            # SmolVLM's own asks the video processor for its settings, then calls this one.
            "apply_chat_template": ProcessorMixin.apply_chat_template,
        },
    )
