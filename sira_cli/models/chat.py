"""Prompts in the form of a checkpoint's chat template: with or without a system message, one turn or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from jinja2 import Environment, TemplateError, meta

from sira_cli.errors import SettingsError
from sira_cli.methods.prompts import Prompt, Turn, turns_of
from sira_cli.models.reasoning import ReasoningParser, left_open
from sira_cli.models.vocabulary import Vocabulary

Chat = list[dict[str, Any]]
_SYNTAX = Environment(extensions=["jinja2.ext.loopcontrols"])
SWITCHES = ("enable_thinking", "thinking")  # variables by which templates ask for reasoning before an answer
_PROBE = "?!?"  # the user's message when only the template's additions matter


def template_of(processor: Any) -> str | None:
    """Return the chat template of a checkpoint's processor; None if it has none."""
    template: str | None = processor.chat_template or processor.tokenizer.chat_template
    return template


def thinking(template: str, think: bool) -> dict[str, bool]:
    """Return the variables that switch reasoning on or off, in a chat template that has such a switch."""
    try:
        names = meta.find_undeclared_variables(_SYNTAX.parse(template))
    except TemplateError:  # the template has its own tags
        return {}
    return {name: think for name in SWITCHES if name in names}


def parser_of(processor: Any, vocabulary: Vocabulary, *, system: str, think: bool) -> ReasoningParser:
    """Return the parser of a model's reasoning; to `think` needs a switch in its template, or one that always does."""
    template = template_of(processor) or ""
    tail = Chats(processor, template, system, think=think).tail() if template else ""
    if think and not (thinking(template, True) or left_open(tail)):
        raise SettingsError(
            f"`think=`: the model's chat template has no switch for reasoning, such as {SWITCHES[0]}: leave it out, or "
            "use a model that has one. Reasoning that a model writes by itself is separated without it"
        )
    return ReasoningParser(vocabulary, template, tail, think=think)


class Chats:
    """The message format of a chat template: with `template` and `switches`, messages are rendered."""

    def __init__(
        self, processor: Any, template: str, system: str, *, think: bool = False, at_once: bool = False
    ) -> None:
        self._processor, self._system = processor, system
        self.template, self.switches = template, thinking(template, think)
        # Some templates take text as a message's content (JoyCaption), and place the image token themselves: pictures
        # are passed separately. They fail on a list, or print it like Python, with quotes around the text.
        self.plain = False
        probe = self._rendered([self._message("user", _PROBE, ["image"])])
        self.plain = probe is None or f"'{_PROBE}'" in probe
        messages = [self._message("system", system), self._message("user", "?")]
        self._takes_system = not system or system in (self._rendered(messages) or "")  # some omit it, some refuse it
        if at_once:
            tail = self.tail()
            if (markers := left_open(tail)) is not None:
                broken = tail.endswith(f"{markers.opening}\n")
                closing = f"\n{markers.closing}\n\n" if broken else markers.closing  # as templates with a switch do
                self.template = f"{template.removesuffix(chr(10))}{{{{ {closing!r} }}}}"

    def tail(self) -> str:
        """Return the template's text after a user message; empty if it refuses a single message."""
        return (self._rendered([self._message("user", _PROBE, ["image"])]) or "").rpartition(_PROBE)[2]

    def chat(self, prompt: Prompt, images: Sequence[Any]) -> Chat:
        """Return the messages of a prompt, in the template's format."""
        turns = list(turns_of(prompt, len(images)))
        if not self._takes_system:
            turns[0] = turns[0].after(self._system)
        if isinstance(prompt, str):
            # Whether it takes them together is asked without the text, which does not matter.
            probe = [Turn("user", _PROBE, len(images))]
            if len(images) > 1 and not self._renders(self._messages(probe, images, as_text=self.plain), probe):
                family = type(self._processor).__name__.removesuffix("Processor")
                raise SettingsError(
                    f"the chat template of this {family} model takes one picture with a text, not {len(images)}: ask "
                    "about each alone, or use another model"
                )
            return self._messages(turns, images, as_text=self.plain)
        for given in (turns, [replace(turn, parts=()) for turn in turns]):  # a template may take one text per message
            for as_text in (self.plain, True):
                chat = self._messages(given, images, as_text=as_text)
                if self._renders(chat, given):
                    return chat
        raise SettingsError(
            f"the model's chat template does not take the turns {', '.join(turn.role for turn in turns)} with their "
            "pictures: send one user message with one picture"
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
        """Return the template's text of messages; None if it refuses them."""
        how = {"chat_template": self.template, "add_generation_prompt": True, "tokenize": False, **self.switches}
        try:
            text: str = self._processor.apply_chat_template(chat, **how)
        except (TemplateError, TypeError):
            return None
        return text
