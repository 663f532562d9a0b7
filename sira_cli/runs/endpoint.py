"""A server that speaks OpenAI's chat protocol: its answers about pictures, with probabilities if it tells them.

endpoint = Endpoint("http://localhost:11434/v1", "qwen3-vl:8b")
source = endpoint.begin("Is there a dog in the image?")     # "logprobs" or "answer"
support, neither = endpoint.ask(data_url, "Is there a dog in the image?")
reply = endpoint.reply([data_url], "What is there?", 100)
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import httpx2
from PIL import Image

from sira_cli.errors import SettingsError, SiraError
from sira_cli.pictures.data_url import encoded
from sira_cli.pictures.tries import in_time, retry_after, tried
from sira_cli.runs.endpoint_answer import Reply, read_text, read_tokens
from sira_cli.runs.item import NoAnswerError

SECONDS = 300.0  # for an answer: a server may have to load its model first
TRIES = 5
_CONNECT = 10.0  # seconds
_TOPS = (20, 5, 0)  # likeliest tokens to ask for: OpenAI's limit, that of stricter servers, and none
_BUSY = (408, 425, 429)  # statuses, besides those of 500 and above, after which the same request may succeed
_SHORT = 200  # characters of a server's message
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


class _StatusError(NoAnswerError):
    """The server answers with an error; `after`: seconds to wait before another try, None if none would help."""

    def __init__(self, message: str, after: float | None) -> None:
        super().__init__(message)
        self.after = after


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
        self._model, self._system, self._seconds, self._key = model, system, seconds, key
        try:
            self._url = httpx2.URL(address)
        except httpx2.InvalidURL:
            self._url = httpx2.URL("")
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise SettingsError("`endpoint=` is not an address: expected one such as http://localhost:11434/v1")
        if not (key.isascii() and key.isprintable()):
            raise SettingsError("the API key holds characters that no key has: see SIRA_API_KEY and OPENAI_API_KEY")
        self.shown = str(self._url.copy_with(userinfo=b"", query=None, fragment=None))
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.Client(headers=headers, timeout=httpx2.Timeout(seconds, connect=_CONNECT))
        self._more: dict[str, Any] = {}
        self._top, self._told = _TOPS[0], False  # the second: whether the server is known to tell them
        self._limit = "max_tokens"
        self._ended = threading.Event()

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
            except _StatusError as error:
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
        except _StatusError as error:
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
        said = _words(reply.text)[:_SHORT] or (reply.top[0][0] if reply.top else "")
        return NoAnswerError(
            f"{self._model} begins its answer to {question!r} with {said!r}, expected {expected}: choose a model "
            "that does not reason first"
        )

    def end(self) -> None:
        """Give up what is under way, and close the connections."""
        self._ended.set()
        self._client.close()

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
        response = self._tried(lambda: self._client.post(self._at("chat/completions"), json=body))
        try:
            reply = Reply.of(response.json())
        except ValueError:
            reply = None
        if reply is None:
            raise NoAnswerError(f"{self.shown} does not answer in OpenAI's chat protocol: {self._said(response)!r}")
        if self._top and not reply.top and self._told:
            raise NoAnswerError(f"{self.shown} sent an answer without log-probabilities, unlike before")
        return reply

    def _owner(self) -> str:
        """Return the kind of server, as its list of models has it; empty without a list.

        Raises:
            SiraError: nobody answers, or the key is wrong.
        """
        try:
            response = in_time(lambda: self._client.get(self._at("models")), self._seconds, self._check_wanted)
        except (httpx2.TransportError, TimeoutError) as error:
            raise self._away(error) from None
        self._check_key(response)
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            models = response.json()["data"]
            named = [model for model in models if model.get("id") == self._model]
            return str((named or models)[0].get("owned_by"))
        return ""

    def _tried(self, send: Callable[[], httpx2.Response]) -> httpx2.Response:
        """Return the response, after several tries if the server is busy.

        Raises:
            NoAnswerError: it does not answer in time, or not to this question.
            SiraError: it is gone, or refuses any question.
        """

        def once() -> httpx2.Response:
            try:
                response = in_time(send, self._seconds, self._check_wanted)
            except (httpx2.TimeoutException, TimeoutError):
                raise NoAnswerError(f"{self.shown}: no answer within {self._seconds:g} s (`timeout=`)") from None
            if response.status_code != 200:
                raise self._refusal(response)
            return response

        try:
            return tried(once, TRIES, _again, self._pause)
        except httpx2.TransportError as error:
            raise self._away(error) from None

    def _check_wanted(self) -> None:
        if self._ended.is_set():
            raise CancelledError

    def _pause(self, seconds: float) -> None:
        self._ended.wait(seconds)
        self._check_wanted()

    def _refusal(self, response: httpx2.Response) -> SiraError:
        """Return the error that a response stands for."""
        self._check_key(response)
        said = f"{self.shown} answers {response.status_code}: {self._said(response)}"
        if response.status_code in (404, 405):
            return SiraError(f"{said} (is {self._model!r} a model of this server, and should /v1 end the address?)")
        busy = response.status_code in _BUSY or response.status_code >= 500
        return _StatusError(said, retry_after(response.headers.get("retry-after", "")) if busy else None)

    def _check_key(self, response: httpx2.Response) -> None:
        if response.status_code in (401, 403):
            which = "the key of SIRA_API_KEY or OPENAI_API_KEY" if self._key else "requests without a key"
            more = "" if self._key else ": set SIRA_API_KEY or OPENAI_API_KEY"
            raise SiraError(f"{self.shown} refuses {which} (status {response.status_code}){more}")

    def _away(self, error: Exception) -> SiraError:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", _words(str(error))) or "no answer"
        return SiraError(f"{self.shown} cannot be reached: {reason}: is the server running?")

    def _said(self, response: httpx2.Response) -> str:
        """Return the message in a response, on one line and without the key."""
        try:
            said = response.json()
        except ValueError:
            said = response.text
        for name in ("error", "message", "detail"):
            said = said.get(name) or said if isinstance(said, dict) else said
        text = _words(str(said))
        return (text.replace(self._key, "...") if self._key else text)[:_SHORT]

    def _at(self, path: str) -> httpx2.URL:
        return self._url.copy_with(path=f"{self._url.path.rstrip('/')}/{path}")


def _words(text: str) -> str:
    """Return a text from elsewhere on one line, without control characters."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def _again(error: Exception) -> float | None:
    """Return the seconds to wait before another try, as for `tried`."""
    if isinstance(error, _StatusError):
        return error.after
    return 0.0 if isinstance(error, httpx2.TransportError) else None
