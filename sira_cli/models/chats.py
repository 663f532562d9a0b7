"""Prompts as a checkpoint's chat template takes them: a system's message or none, one turn or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jinja2 import Environment, TemplateError, meta

from sira_cli.errors import SettingsError
from sira_cli.methods.prompts import Prompt, Turn, turns_of

Chat = list[dict[str, Any]]
_SYNTAX = Environment(extensions=["jinja2.ext.loopcontrols"])
THINKING = ("enable_thinking", "thinking")  # variables by which templates ask for reasoning before an answer


def no_thinking(template: str) -> dict[str, bool]:
    """Return the variables that switch off reasoning in a chat template that has such a switch: captions have none."""
    try:
        names = meta.find_undeclared_variables(_SYNTAX.parse(template))
    except TemplateError:  # has tags of its own
        return {}
    return {name: False for name in THINKING if name in names}


class Chats:
    """How a chat template wants its messages.

    Attributes:
        plain: whether it takes a message's content as text (JoyCaption), not as a list of parts. Such a template itself
            places the image token, and pictures come beside the chat.
    """

    def __init__(self, processor: Any, template: str, system: str) -> None:
        """Try the template.

        Args:
            processor: the checkpoint's.
            template: its chat template.
            system: the system's message; empty: none.
        """
        self._processor, self._template, self._system = processor, template, system
        self.plain = self._wants_plain_text()
        self._takes_system = not system or self._takes_system_message()

    def chat(self, prompt: Prompt, images: Sequence[Any]) -> Chat:
        """Return the messages of a prompt, in the form in which the template renders them.

        Args:
            prompt: one text, or a conversation.
            images: the pictures, one for each turn that has one.

        Raises:
            SettingsError: the template does not render all turns of a conversation.
        """
        turns = list(turns_of(prompt))
        if self._system and not self._takes_system:
            turns[0] = replace(turns[0], text=f"{self._system} {turns[0].text}")
        chat = self._messages(turns, images, as_text=self.plain)
        if isinstance(prompt, str) or self._renders(chat, turns):
            return chat
        chat = self._messages(turns, images, as_text=True)
        if self._renders(chat, turns):
            return chat
        raise SettingsError(
            f"the model's chat template does not take the turns {', '.join(turn.role for turn in turns)} with their "
            "pictures: send one message of the user with one picture"
        )

    def _messages(self, turns: Sequence[Turn], images: Sequence[Any], *, as_text: bool) -> Chat:
        """Return turns as messages; `as_text`: with text as the content of those of the assistant."""
        unseen = iter(images)
        first = [self._message("system", self._system)] if self._system and self._takes_system else []
        return [
            *first,
            *(
                {"role": turn.role, "content": turn.text}
                if as_text and turn.role == "assistant"
                else self._message(turn.role, turn.text, next(unseen) if turn.picture else None)
                for turn in turns
            ),
        ]

    def _message(self, role: str, text: str, image: Any = None) -> dict[str, Any]:
        if self.plain:
            return {"role": role, "content": text}
        seen = [] if image is None else [{"type": "image", "image": image}]
        return {"role": role, "content": [*seen, {"type": "text", "text": text}]}

    def _renders(self, chat: Chat, turns: Sequence[Turn]) -> bool:
        """Return whether what the turns say is rendered in their order, and the pictures where they belong."""
        try:
            rendered, alone = self._rendered(chat), self._rendered([self._message("user", "?", "image")])
        except (TemplateError, TypeError):
            return False
        token = getattr(self._processor, "image_token", None) or ""
        if token not in alone:
            token = ""  # the template writes another one, which the processor replaces (Gemma 3)
        place = 0
        for turn in turns:
            begins = rendered.find(turn.text.strip(), place)
            if begins < 0 or (turn.picture and token not in rendered[place:begins]):
                return False
            place = begins + len(turn.text.strip())
        return not token or rendered.count(token) == alone.count(token) * sum(turn.picture for turn in turns)

    def _rendered(self, chat: Chat) -> str:
        text: str = self._processor.apply_chat_template(
            chat,
            chat_template=self._template,
            add_generation_prompt=True,
            tokenize=False,
            **no_thinking(self._template),
        )
        return text

    def _takes_system_message(self) -> bool:
        """Return whether the template renders a system's message; some leave it out, some refuse it."""
        try:
            return self._system in self._rendered([self._message("system", self._system), self._message("user", "?")])
        except TemplateError:
            return False

    def _wants_plain_text(self) -> bool:
        """Return whether the template takes text as a message's content.

        Such a template fails on a list, or writes it out as Python does, with quotes around the text.
        """
        chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?!?"}]}]
        try:
            return "'?!?'" in self._rendered(chat)
        except (TemplateError, TypeError):
            return True
