"""A server that speaks OpenAI's chat protocol: its answers about pictures, with probabilities if it tells them.

endpoint = Endpoint("http://localhost:11434/v1", "qwen3-vl:8b")
source = endpoint.begin("Is there a dog in the image?")     # "logprobs" or "answer"
support, neither = endpoint.ask(data_url, "Is there a dog in the image?")
reply = endpoint.reply([data_url], "What is there?", 100)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from PIL import Image

from sira_cli.errors import SiraError
from sira_cli.pictures.data_url import encoded
from sira_cli.runs.endpoint_answer import Reply, read_text, read_tokens
from sira_cli.runs.endpoint_client import SECONDS, SHORT, Client, StatusError, line_of
from sira_cli.runs.item import NoAnswerError

_TOPS = (20, 5, 0)  # likeliest tokens to ask for: OpenAI's limit, that of stricter servers, and none
# Asks for an answer without contrast and reasoning, in the words of a kind of server (`owned_by` of its models). Others
# do not get it: OpenAI's refuses requests with unknown keys.
_UNTHINKING = {"chat_template_kwargs": {"enable_thinking": False}}
_OWN_WORDS: dict[str, dict[str, Any]] = {
    "sira": {"sira": {"method": "greedy", "think": False}},
    "vllm": _UNTHINKING,
    "sglang": _UNTHINKING,
    "llamacpp": _UNTHINKING,
    "library": {"reasoning_effort": "none"},  # Ollama
}


class Endpoint:
    """A model on a server. Safe in threads.

    Attributes:
        shown: the address without password and parameters.
    """

    def __init__(self, address: str, model: str, *, system: str = "", seconds: float = SECONDS, key: str = "") -> None:
        """Prepare to ask; nothing is sent yet.

        Args:
            address: of the protocol, usually with `/v1` at its end.
            model: its name on the server.
            system: system message; empty: none.
            seconds: time limit of an answer.
            key: API key; never in a message.

        Raises:
            SettingsError: the address or the key is not one.
        """
        self._model, self._system = model, system
        self._client = Client(address, model, seconds=seconds, key=key)
        self.shown = self._client.shown
        self._more: dict[str, Any] = {}
        self._top, self._told = _TOPS[0], False  # the second: whether the server is known to tell them
        self._limit = "max_tokens"

    def begin(self, question: str) -> str:
        """Ask about an empty picture, to learn how the server answers.

        Args:
            question: any.

        Returns:
            `logprobs`: it tells probabilities; `answer`: it says yes or no, which count as 1 and 0.

        Raises:
            SiraError: it is away, refuses, or does not know the model.
        """
        self._more = _OWN_WORDS.get(self._owner(), {})
        url = encoded(Image.new("RGB", (64, 64), "grey"))
        for self._top in _TOPS:
            try:
                reply = self._first(url, question)
            except StatusError as error:
                if not self._top or "logprob" not in str(error):
                    raise SiraError(str(error)) from None
            except NoAnswerError as error:
                raise SiraError(str(error)) from None
            else:
                break
        self._told = bool(reply.top)
        self._top *= self._told
        return "logprobs" if self._told else "answer"

    def _first(self, picture: str, question: str) -> Reply:
        """Ask for one token, in the server's word for the limit."""
        try:
            return self.reply([picture], question)
        except StatusError as error:
            if self._limit != "max_tokens" or "max_completion_tokens" not in str(error):
                raise
            self._limit = "max_completion_tokens"
            return self.reply([picture], question)

    def ask(self, picture: str, question: str) -> tuple[float, float]:
        """Return the support, and the probability of an answer that is neither yes nor no.

        Args:
            picture: as a data URL.
            question: in its final wording.

        Raises:
            NoAnswerError: no answer, or another one than yes or no.
            SiraError: the server is gone, or refuses any question.
        """
        reply = self.reply([picture], question)
        found = read_tokens(reply.top) if self._top else read_text(reply.text)
        if found is None:
            raise self.unlike(reply, question, "yes or no")
        return found

    def unlike(self, reply: Reply, question: str, expected: str) -> NoAnswerError:
        """Return the error that a reply begins with something else than expected."""
        said = line_of(reply.text)[:SHORT] or (reply.top[0][0] if reply.top else "")
        return NoAnswerError(
            f"{self._model} begins its answer to {question!r} with {said!r}, expected {expected}: choose a model "
            "that does not reason first"
        )

    def end(self) -> None:
        """Give up what is under way, and close the connections."""
        self._client.end()

    def reply(self, pictures: Sequence[str], text: str, max_tokens: int = 1) -> Reply:
        """Return the likeliest answer.

        Args:
            pictures: as data URLs; all in one message.
            text: the question or prompt.
            max_tokens: of the answer.

        Raises:
            NoAnswerError: the server has no answer, or one without the probabilities that others had.
            SiraError: as `ask`.
        """
        images: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
        content = [*images, {"type": "text", "text": text}]
        system = [{"role": "system", "content": self._system}] if self._system else []
        scores = {"logprobs": True, "top_logprobs": self._top} if self._top else {}
        body = {
            "model": self._model,
            "messages": [*system, {"role": "user", "content": content}],
            self._limit: max_tokens,
            "temperature": 0,
            **scores,
            **self._more,
        }
        response = self._client.post("chat/completions", body)
        try:
            reply = Reply.of(response.json())
        except ValueError:
            reply = None
        if reply is None:
            raise NoAnswerError(
                f"{self.shown} does not answer in OpenAI's chat protocol: {self._client.said(response)!r}"
            )
        if self._top and not reply.top and self._told:
            raise NoAnswerError(f"{self.shown} sent an answer without log-probabilities, unlike before")
        return reply

    def _owner(self) -> str:
        """Return the kind of server, as its list of models has it; empty without a list.

        Raises:
            SiraError: nobody answers, or the key is wrong.
        """
        response = self._client.get("models")
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            models = response.json()["data"]
            named = [model for model in models if model.get("id") == self._model]
            return str((named or models)[0].get("owned_by"))
        return ""
