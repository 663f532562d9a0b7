"""Prompts in the chat format of a checkpoint: its template's, or the one that it was trained with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, TemplateError, meta

from sira_cli.errors import SettingsError, UnsupportedModelError
from sira_cli.methods.prompts import Prompt, Turn, pictures_of, turns_of
from sira_cli.models.reasoning import ReasoningParser, left_open
from sira_cli.models.resizing import check_pictures
from sira_cli.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from sira_cli.methods.prompts import Shown

# Prompts from training, for types with checkpoints without a chat template; the pictures go before the text.
WITHOUT_TEMPLATE = {"llava": ("USER: ", "<image>\n", " ASSISTANT:"), "paligemma": ("", "<image>", "")}


Chat = list[dict[str, Any]]
_SYNTAX = Environment(extensions=["jinja2.ext.loopcontrols"])
SWITCHES = ("enable_thinking", "thinking")  # variables by which templates ask for reasoning before an answer
_PROBE = "?!?"  # the user's message when only the template's additions matter


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
    """Convert prompts with their pictures to the model's inputs, in the checkpoint's chat format, or to texts of it.

    Args:
        processor: the checkpoint's.
        model_type: the type in the model's config, for checkpoints without a chat template.
        images, prompts: B of each; a prompt may have several pictures.
        system: the system message; empty: none.
        think: whether reasoning is switched on, in a template that has a switch.
        skip_thought: whether a thought that the prompt opens is closed, so that the answer comes next.
        as_text: whether to return B texts instead of tensors `[B, S]`, left-padded.

    Raises:
        SettingsError: the chat format cannot hold a prompt.
        UnsupportedModelError: there is no chat format.
        ValueError: a picture would be made too large.
    """
    pictures = [pictures_of(shown) for shown in images]
    check_pictures(processor, pictures)
    chats = Chats(processor, system, think=think and not skip_thought, skip_thought=skip_thought)
    if chats.template is None:
        if model_type not in WITHOUT_TEMPLATE:
            raise UnsupportedModelError("the checkpoint has no chat template (chat_template.jinja): add one")
        before, placeholder, after = WITHOUT_TEMPLATE[model_type]
        texts = []
        for prompt, shown in zip(prompts, pictures, strict=True):
            check_chat(processor, prompt, system)
            text = turns_of(prompt)[0].text
            if system:
                text = f"{system} {text}"
            texts.append(before + placeholder * len(shown) + text + after)
        return texts if as_text else processor(images=pictures, text=texts, padding=True, return_tensors="pt")
    messages = [chats.chat(prompt, shown) for prompt, shown in zip(prompts, pictures, strict=True)]
    if as_text:
        return processor.apply_chat_template(messages, tokenize=False, **chats.options)
    of_processor: dict[str, Any] = {"padding": True}
    if chats.plain:
        of_processor["images"] = pictures
    return processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_tensors="pt", processor_kwargs=of_processor, **chats.options
    )


def check_chat(processor: Any, prompt: Prompt, system: str, pictures: int = 1) -> None:
    """Check that the checkpoint's chat format can hold all turns of a conversation, and all pictures of a message."""
    turns = turns_of(prompt, pictures)
    chats = Chats(processor, system)
    if chats.template is not None:
        chats.chat(prompt, ["picture"] * sum(turn.pictures for turn in turns))
    elif len(turns) > 1:  # one turn has any number of pictures before the text
        raise SettingsError("the checkpoint has no chat template for turns: send one user message with one picture")


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
        self._processor = processor
        self._system = system
        self.template: str | None = processor.chat_template or processor.tokenizer.chat_template
        names: set[str] = set()
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
        closing = self._closing() if skip_thought else ""
        if self.template and closing:
            self.template = self.template.removesuffix("\n") + closing

    @property
    def options(self) -> dict[str, Any]:
        """Options of `apply_chat_template`."""
        return {"chat_template": self.template, "add_generation_prompt": True, **self.switches}

    def _closing(self) -> str:
        """Return the text by which a template would close the thought that it opens; empty if it opens none."""
        tail = self.tail()
        markers = left_open(tail)
        if markers is None:
            return ""
        closing = markers.closing
        if tail.endswith(f"{markers.opening}\n"):
            closing = f"\n{closing}\n\n"  # as templates with a switch do
        return f"{{{{ {closing!r} }}}}"

    def tail(self) -> str:
        """Return the template's text after a user message; empty if it refuses a single message."""
        return (self._rendered([self._message("user", _PROBE, ["image"])]) or "").rpartition(_PROBE)[2]

    def chat(self, prompt: Prompt, images: Sequence[Any]) -> Chat:
        """Return the messages of a prompt, in the template's format."""
        turns = list(turns_of(prompt, len(images)))
        if not self._takes_system:
            turns[0] = turns[0].after(self._system)
        if isinstance(prompt, str) and len(images) < 2:
            return self._messages(turns, images, as_text=self.plain)
        without_parts = [replace(turn, parts=()) for turn in turns]  # a template may take one text per message
        for candidate in (turns, without_parts):
            tried = [Turn("user", _PROBE, len(images))] if isinstance(prompt, str) else candidate  # any text will do
            for as_text in (self.plain, True):
                if self._renders(self._messages(tried, images, as_text=as_text), tried):
                    return self._messages(candidate, images, as_text=as_text)
        family = type(self._processor).__name__.removesuffix("Processor")
        roles = ", ".join(turn.role for turn in turns)
        raise SettingsError(
            f"the chat template of this {family} model does not take the turns {roles} with {len(images)} pictures: "
            "send one user message with one picture"
        )

    def _messages(self, turns: Sequence[Turn], images: Sequence[Any], *, as_text: bool) -> Chat:
        """Return turns as messages; `as_text`: the assistant's messages have text as content."""
        unseen = iter(images)
        chat: Chat = []
        if self._system and self._takes_system:
            chat.append(self._message("system", self._system))
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
        unseen = iter(images)
        content = []
        for part in parts or (*[None] * len(images), text):
            if part is None:
                content.append({"type": "image", "image": next(unseen)})
            else:
                content.append({"type": "text", "text": part})
        return {"role": role, "content": content}

    def _renders(self, chat: Chat, turns: Sequence[Turn]) -> bool:
        """Return whether the turns' texts are rendered in order, with the pictures at their places."""
        rendered = self._rendered(chat)
        alone = self._rendered([self._message("user", "?", ["image"])])
        if rendered is None or alone is None:
            return False
        token = getattr(self._processor, "image_token", None) or ""
        if token not in alone:
            token = ""  # the template writes another token, which the processor replaces (Gemma 3)
        place = 0
        for turn in turns:
            for part in turn.content:
                if part is None:
                    continue
                text = part.strip()
                begins = rendered.find(text, place)
                # Between words a template may place pictures as it likes: LLaVA's has them first all the same.
                if begins < 0 or (turn.pictures and not turn.parts and token not in rendered[place:begins]):
                    return False
                place = begins + len(text)
        pictures = sum(turn.pictures for turn in turns)
        return not token or rendered.count(token) == alone.count(token) * pictures

    def _rendered(self, chat: Chat) -> str | None:
        """Return the template's text of messages; None if it refuses them, or if no template exists."""
        if self.template is None:
            return None
        try:
            text: str = self._processor.apply_chat_template(chat, tokenize=False, **self.options)
        except (TemplateError, TypeError):
            return None
        return text
