"""A checkpoint's processor (tokenizer, image processor, chat template), from its own files, and prompts in its form.

Several families' processors need a video processor, which needs torchvision. They are loaded without it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, TemplateError, meta
from PIL import Image
from transformers import AutoConfig, AutoProcessor
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name
from transformers.processing_utils import ProcessorMixin

from sira_cli.errors import PictureError, SettingsError, SiraError, UnsupportedModelError
from sira_cli.methods.prompts import Prompt, Turn, pictures_of, turns_of
from sira_cli.models.hub import first_line
from sira_cli.models.preset import ImageSettings
from sira_cli.models.reasoning import ReasoningParser, left_open
from sira_cli.models.vocabulary import Vocabulary
from sira_cli.parsing import from_json
from sira_cli.pictures.names import one_line

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

# Prompts from training, for types with checkpoints without a chat template; the pictures go before the text.
WITHOUT_TEMPLATE = {"llava": ("USER: ", "<image>\n", " ASSISTANT:"), "paligemma": ("", "<image>", "")}


def load_processor(folder: Path, *, image: ImageSettings | None = None, trust_remote_code: bool = False) -> Any:
    """Load the processor of the checkpoint in `folder`, without its video part."""
    if trust_remote_code:
        processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True, local_files_only=True)
    else:
        kind, how = _without_video(_processor_class(folder)), {"local_files_only": True, "trust_remote_code": False}
        with _todays_names(folder) as files:
            processor = kind.from_pretrained(files, **how)
    if hasattr(processor, "num_additional_image_tokens"):
        _complete_counting(processor, folder, trust_remote_code)
    tokenizer = processor.tokenizer
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            lacking = "neither a padding token nor an end token: name one in tokenizer_config.json (pad_token)"
            raise UnsupportedModelError(f"the tokenizer in {folder} has {lacking}")
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
    skip_thought: bool = False,
    as_text: bool = False,
) -> Any:
    """Convert prompts with their pictures to the model's inputs, in the checkpoint's chat format, or to texts of it."""
    seen = [pictures_of(shown) for shown in images]
    check_pictures(processor, seen)
    chats = Chats(processor, system, think=think and not skip_thought, skip_thought=skip_thought)
    if chats.template is None:
        if model_type not in WITHOUT_TEMPLATE:
            raise UnsupportedModelError("the checkpoint has no chat template (chat_template.jinja): add one")
        (before, each, after), texts = WITHOUT_TEMPLATE[model_type], list[str]()
        for prompt, own in zip(prompts, seen, strict=True):
            check_chat(processor, prompt, system)
            text = f"{system} " * bool(system) + turns_of(prompt)[0].text
            texts.append(before + each * len(own) + text + after)
        return texts if as_text else processor(images=seen, text=texts, padding=True, return_tensors="pt")
    said = [chats.chat(prompt, shown) for prompt, shown in zip(prompts, seen, strict=True)]
    how = {"chat_template": chats.template, "add_generation_prompt": True, **chats.switches}
    if as_text:
        return processor.apply_chat_template(said, tokenize=False, **how)
    settings = {"padding": True, **({"images": seen} if chats.plain else {})}
    how |= {"tokenize": True, "return_dict": True, "return_tensors": "pt", "processor_kwargs": settings}
    return processor.apply_chat_template(said, **how)


def check_chat(processor: Any, prompt: Prompt, system: str, pictures: int = 1) -> None:
    """Check that the checkpoint's chat format can hold all turns of a conversation, and all pictures of a message."""
    turns, chats = turns_of(prompt, pictures), Chats(processor, system)
    if chats.template is not None:
        chats.chat(prompt, ["picture"] * sum(turn.pictures for turn in turns))
    elif len(turns) > 1:  # one turn has any number of pictures before the text
        raise SettingsError("the checkpoint has no chat template for turns: send one user message with one picture")


def pixel_library(processor: Any) -> str:
    """Return the library that makes a picture's pixels, with its version: Pillow and torchvision round differently."""
    library = getattr(processor.image_processor, "backend", "pil").replace("pil", "pillow")
    return f"{library} {version(library)}"


def refused(name: str, error: Exception) -> PictureError:
    """Turn any error of an image processor into the picture's error."""
    return PictureError(f"{one_line(name)}: the image processor refused it: {first_line(error)}")


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
        if (name := read_settings(folder, file).get("processor_class")) is not None:
            if (named := processor_class_from_name(name)) is None:
                raise UnsupportedModelError(f"{folder / file}: this transformers has no {name!r}")
            return _importable(named)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if type(config) not in PROCESSOR_MAPPING:
        raise UnsupportedModelError(f"{folder}: {config.model_type!r} has no processor for pictures and text")
    return _importable(PROCESSOR_MAPPING[type(config)])


def _importable(named: Any) -> Any:
    """Return `named`, or the real class if transformers has a dummy because torchvision is missing."""
    if not getattr(named, "is_dummy", False):
        return named
    if named.__name__ != "PixtralProcessor":
        raise UnsupportedModelError(f"{named.__name__} needs torchvision: pip install torchvision")
    package = "transformers.models.pixtral"  # imports a function that the image processor for Pillow also has
    absent = f"{package}.image_processing_pixtral"
    sys.modules[absent] = importlib.import_module(f"{package}.image_processing_pil_pixtral")
    try:
        return importlib.import_module(f"{package}.processing_pixtral").PixtralProcessor
    finally:
        del sys.modules[absent]


class _NoVideo(ProcessorMixin):
    """Base after a processor class in the order of bases: takes a video processor that is None out of its call."""

    def __init__(self, *args: Any, video_processor: None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call] # not annotated upstream


def _without_video(base: Any) -> Any:
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
    content: dict[str, Any] = from_json(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content


def _complete_counting(processor: Any, folder: Path, trust_remote_code: bool) -> None:
    """Set what LLaVA's processors count image tokens by, where files from before autumn 2024 lack it."""
    stated = read_settings(folder, "processor_config.json")
    names = ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens")
    if not (missing := [name for name in names if stated.get(name) is None]):
        return
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    vision = getattr(config, "vision_config", None)
    own = (getattr(vision, names[0], None), getattr(config, names[1], None))
    known = dict(zip(names, (*own, CLASS_TOKENS.get(getattr(vision, "model_type", ""), 0)), strict=True))
    for name in missing:
        if known[name] is None:
            raise UnsupportedModelError(
                f"{folder}: image tokens cannot be counted without {name}: add it to processor_config.json"
            )
        setattr(processor, name, known[name])


def limit_size(processor: Any, settings: ImageSettings) -> None:
    """Set limits on a processor; transformers keeps the pixels of a resized picture as the edges of `size`."""
    given = settings.given()
    given.pop("pad_to_square", None)
    images = processor.image_processor
    options, size = images.valid_kwargs.__annotations__, dict(images.size or {})
    edges, by_pixels = "longest_edge" in size, "max_pixels" in options
    able = {"min_pixels": by_pixels and edges, "max_pixels": by_pixels and edges, "longest_edge": edges > by_pixels}
    able |= {"max_tiles": "max_patches" in options, "pan_and_scan": "do_pan_and_scan" in options}
    least: dict[str, Callable[[], Any]] = {
        "min_pixels": lambda: (images.patch_size * images.merge_size) ** 2,
        "max_pixels": lambda: given.get("min_pixels", size["shortest_edge"]),
        "longest_edge": lambda: dict(getattr(images, "max_image_size", None) or {}).get("longest_edge", 1),  # a tile
        "max_tiles": lambda: images.min_patches,
        "pan_and_scan": lambda: False,
    }
    for name, value in given.items():
        if not able[name]:
            raise SettingsError(f"image.{name}: {type(images).__name__} has no such limit")
        if value < (minimum := least[name]()):
            raise SettingsError(f"image.{name}: {value} is below the processor's minimum of {minimum}")
    smallest, most = given.get("min_pixels", 0), given.get("max_pixels", size.get("longest_edge", 0))
    if smallest > most:
        raise SettingsError(f"image.min_pixels: {smallest} is more than the maximum of {most}: also give max_pixels")
    edges_of = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge", "longest_edge": "longest_edge"}
    if own := {edges_of[name]: value for name, value in given.items() if name in edges_of}:
        images.size = own if "longest_edge" in given else size | own
    for name, option in (("max_tiles", "max_patches"), ("pan_and_scan", "do_pan_and_scan")):
        if name in given:  # also as the enclosing processor's default, which would override it
            setattr(images, option, given[name])
            processor.images_kwargs = {**(getattr(processor, "images_kwargs", None) or {}), option: given[name]}


def pad_to_square(shown: Shown, mean: Sequence[float]) -> list[Image.Image]:
    """Pad pictures to squares with bars of one colour, as LLaVA-1.5's authors do."""
    squares = []
    for picture in pictures_of(shown):
        side = max(picture.size)
        _check_size(picture.size, (side, side), 2 * (Image.MAX_IMAGE_PIXELS or side**2))  # as where pictures are opened
        square = Image.new(picture.mode, (side, side), tuple(int(255 * channel) for channel in mean))
        square.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
        squares.append(square)
    return squares


MOST = 2**24  # pixels of a picture resized by its shorter edge; Qwen3-VL's limit, the largest of all
MOST_SQUARE = 2**27  # pixels of the square into which a picture is put before it is resized


def check_pictures(processor: Any, images: Sequence[Shown]) -> None:
    """Check that the checkpoint's image processor does not make a picture too large."""
    own = processor.image_processor
    size = {name for name, value in dict(getattr(own, "size", None) or {}).items() if value}
    tiled = hasattr(own, "image_grid_pinpoints")  # LLaVA-NeXT resizes only squares by their edge
    for width, height in (picture.size for shown in images for picture in pictures_of(shown)):
        short, long = sorted((width, height))
        if type(own).__name__.startswith("LlavaImageProcessor") and own.do_pad:
            _check_size((width, height), (long, long), MOST_SQUARE)
            short = long
        if size == {"shortest_edge"} and not tiled and own.do_resize:
            edge = own.size["shortest_edge"]
            new = edge, edge * long // short
            _check_size((width, height), new if width <= height else new[::-1], MOST)


def _check_size(size: tuple[int, int], new: tuple[int, int], most: int) -> None:
    if new[0] * new[1] > most:
        raise ValueError(
            f"its {size[0]:,} x {size[1]:,} pixels would become {new[0]:,} x {new[1]:,}, and {most:,} pixels are the "
            "limit: crop it, or scale its longer side down"
        )


Chat = list[dict[str, Any]]
_SYNTAX = Environment(extensions=["jinja2.ext.loopcontrols"])
SWITCHES = ("enable_thinking", "thinking")  # variables by which templates ask for reasoning before an answer
_PROBE = "?!?"  # the user's message when only the template's additions matter


def parser_of(processor: Any, vocabulary: Vocabulary, *, system: str, think: bool) -> ReasoningParser:
    """Return the parser of a model's reasoning; to `think` needs a switch in its template, or one that always does."""
    chats = Chats(processor, system, think=think)
    if think and not (chats.switches or left_open(chats.tail())):
        raise SettingsError(
            f"`think=`: the model's chat template has no switch for reasoning, such as {SWITCHES[0]}: leave it out, or "
            "use a model that has one. Reasoning that a model writes by itself is separated without it"
        )
    return ReasoningParser(vocabulary, chats.template or "", chats.tail(), think=think)


class Chats:
    """The message format of a checkpoint's chat template, if it has one; `switches` turn its reasoning on or off."""

    def __init__(self, processor: Any, system: str, *, think: bool = False, skip_thought: bool = False) -> None:
        self._processor, self._system, names = processor, system, set[str]()
        self.template: str | None = processor.chat_template or processor.tokenizer.chat_template
        with suppress(TemplateError):  # the template has its own tags
            names = meta.find_undeclared_variables(_SYNTAX.parse(self.template or ""))
        self.switches = {name: think for name in SWITCHES if name in names}
        # Some templates take text as a message's content (JoyCaption), and place the image token themselves: pictures
        # are passed separately. They fail on a list, or print it like Python, with quotes around the text.
        self.plain = False
        probe = self._rendered([self._message("user", _PROBE, ["image"])])
        self.plain = probe is None or f"'{_PROBE}'" in probe
        messages = [self._message("system", system), self._message("user", "?")]
        self._takes_system = not system or system in (self._rendered(messages) or "")  # some omit it, some refuse it
        if skip_thought and (markers := left_open(tail := self.tail())) is not None:
            broken = tail.endswith(f"{markers.opening}\n")
            closing = f"\n{markers.closing}\n\n" if broken else markers.closing  # as templates with a switch do
            self.template = f"{(self.template or '').removesuffix(chr(10))}{{{{ {closing!r} }}}}"

    def tail(self) -> str:
        """Return the template's text after a user message; empty if it refuses a single message."""
        return (self._rendered([self._message("user", _PROBE, ["image"])]) or "").rpartition(_PROBE)[2]

    def chat(self, prompt: Prompt, images: Sequence[Any]) -> Chat:
        """Return the messages of a prompt, in the template's format."""
        turns = list(turns_of(prompt, len(images)))
        if not self._takes_system:
            turns[0] = turns[0].after(self._system)
        for given in (turns, [replace(turn, parts=()) for turn in turns]):  # a template may take one text per message
            asked = [Turn("user", _PROBE, len(images))] if isinstance(prompt, str) else given  # any text will do
            for as_text in (self.plain, True):
                tried = self._messages(asked, images, as_text=as_text)
                if (isinstance(prompt, str) and len(images) < 2) or self._renders(tried, asked):
                    return self._messages(given, images, as_text=as_text)
        family, roles = type(self._processor).__name__.removesuffix("Processor"), ", ".join(turn.role for turn in turns)
        raise SettingsError(
            f"the chat template of this {family} model does not take the turns {roles} with {len(images)} pictures: "
            "send one user message with one picture"
        )

    def _messages(self, turns: Sequence[Turn], images: Sequence[Any], *, as_text: bool) -> Chat:
        """Return turns as messages; `as_text`: the assistant's messages have text as content."""
        unseen = iter(images)
        chat = [self._message("system", self._system)] if self._system and self._takes_system else []
        for turn in turns:
            if as_text and turn.role == "assistant":
                chat.append({"role": turn.role, "content": turn.text})
            else:
                chat.append(self._message(turn.role, turn.text, list(islice(unseen, turn.pictures)), turn.parts))
        return chat

    def _message(
        self, role: str, text: str, images: Sequence[Any] = (), parts: Sequence[str | None] = ()
    ) -> dict[str, Any]:
        if self.plain:
            return {"role": role, "content": text}
        seen = ({"type": "image", "image": image} for image in images)
        order = parts or (*[None] * len(images), text)
        content = [next(seen) if part is None else {"type": "text", "text": part} for part in order]
        return {"role": role, "content": content}

    def _renders(self, chat: Chat, turns: Sequence[Turn]) -> bool:
        """Return whether the turns' texts are rendered in order, with the pictures at their places."""
        rendered, alone = self._rendered(chat), self._rendered([self._message("user", "?", ["image"])])
        if rendered is None or alone is None:
            return False
        token = getattr(self._processor, "image_token", None) or ""
        if token not in alone:
            token = ""  # the template writes another token, which the processor replaces (Gemma 3)
        place = 0
        for turn in turns:
            for text in (part.strip() for part in turn.content if part is not None):
                begins = rendered.find(text, place)
                # Between words a template may place pictures as it likes: LLaVA's has them first all the same.
                if begins < 0 or (turn.pictures and not turn.parts and token not in rendered[place:begins]):
                    return False
                place = begins + len(text)
        return not token or rendered.count(token) == alone.count(token) * sum(turn.pictures for turn in turns)

    def _rendered(self, chat: Chat) -> str | None:
        """Return the template's text of messages; None if it refuses them, or if no template exists."""
        if self.template is None:
            return None
        how = {"chat_template": self.template, "add_generation_prompt": True, "tokenize": False, **self.switches}
        try:
            text: str = self._processor.apply_chat_template(chat, **how)
        except (TemplateError, TypeError):
            return None
        return text
