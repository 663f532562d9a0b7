"""Requests to a server: with its key, time limits, new attempts while it is busy, and errors in one line."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from typing import Any

import httpx2

from sira_cli.errors import NoAnswerError, SettingsError, SiraError
from sira_cli.pictures.tries import in_time, retry_after, tried

SECONDS = 300.0  # for an answer: a server may have to load its model first
TRIES = 5
SHORT = 200  # characters of a server's message
_CONNECT = 10.0  # seconds
_BUSY = (408, 425, 429)  # statuses, besides those of 500 and above, after which the same request may succeed


class StatusError(NoAnswerError):
    """An error status from the server; `after`: seconds to wait before another attempt, None if none would help."""

    def __init__(self, message: str, after: float | None) -> None:
        super().__init__(message)
        self.after = after


class Client:
    """Requests to a server, until `end`. Safe in threads.

    Attributes:
        shown: the address without password and parameters.
    """

    def __init__(self, address: str, model: str, *, seconds: float = SECONDS, key: str = "") -> None:
        """Prepare to ask; nothing is sent yet.

        Args:
            address: of the protocol, usually with `/v1` at its end.
            model: its name on the server, for messages.
            seconds: time limit of an answer.
            key: API key; never in a message.

        Raises:
            SettingsError: the address or the key is invalid.
        """
        self._model, self._seconds, self._key = model, seconds, key
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
        self._ended = threading.Event()

    def get(self, path: str) -> httpx2.Response:
        """Return the response of a path, whatever its status, after one attempt.

        Raises:
            SiraError: no server answers, or the key is wrong.
        """
        try:
            response = in_time(lambda: self._client.get(self._at(path)), self._seconds, self._check_wanted)
        except (httpx2.TransportError, TimeoutError) as error:
            raise self._away(error) from None
        self._check_key(response)
        return response

    def post(self, path: str, body: Mapping[str, Any]) -> httpx2.Response:
        """Return the response to a request, after several attempts if the server is busy.

        Raises:
            NoAnswerError: the server does not answer in time, or not this request.
            SiraError: the server is gone, or refuses all requests.
        """

        def send() -> httpx2.Response:
            return self._client.post(self._at(path), json=body)

        try:
            return tried(lambda: self._answered(send), TRIES, _again, self._pause)
        except httpx2.TransportError as error:
            raise self._away(error) from None

    def said(self, response: httpx2.Response) -> str:
        """Return the message in a response, on one line and without the key."""
        try:
            said = response.json()
        except ValueError:
            said = response.text
        for name in ("error", "message", "detail"):
            said = said.get(name) or said if isinstance(said, dict) else said
        text = line_of(str(said))
        return (text.replace(self._key, "...") if self._key else text)[:SHORT]

    def end(self) -> None:
        """Abandon running requests, and close the connections."""
        self._ended.set()
        self._client.close()

    def _answered(self, send: Callable[[], httpx2.Response]) -> httpx2.Response:
        try:
            response = in_time(send, self._seconds, self._check_wanted)
        except (httpx2.TimeoutException, TimeoutError):
            raise NoAnswerError(f"{self.shown}: no answer within {self._seconds:g} s (`timeout=`)") from None
        if response.status_code != 200:
            raise self._refusal(response)
        return response

    def _check_wanted(self) -> None:
        if self._ended.is_set():
            raise CancelledError

    def _pause(self, seconds: float) -> None:
        self._ended.wait(seconds)
        self._check_wanted()

    def _refusal(self, response: httpx2.Response) -> SiraError:
        """Return the error that a response stands for."""
        if response.status_code == 403 and "logprob" in self.said(response):  # of a field, not of the key
            return StatusError(f"{self.shown} answers 403: {self.said(response)}", None)
        self._check_key(response)
        if response.is_redirect:
            there = line_of(response.headers.get("location", "")).removesuffix("/chat/completions")[:SHORT]
            return SiraError(f"{self.shown} answers {response.status_code}, a redirect to {there}: give that address")
        said = f"{self.shown} answers {response.status_code}: {self.said(response)}"
        if response.status_code in (404, 405):
            return SiraError(f"{said} (is {self._model!r} a model of this server, and should /v1 end the address?)")
        busy = response.status_code in _BUSY or response.status_code >= 500
        return StatusError(said, retry_after(response.headers.get("retry-after", "")) if busy else None)

    def _check_key(self, response: httpx2.Response) -> None:
        if response.status_code in (401, 403):
            which = "the key of SIRA_API_KEY or OPENAI_API_KEY" if self._key else "requests without a key"
            more = "" if self._key else ": set SIRA_API_KEY or OPENAI_API_KEY"
            raise SiraError(f"{self.shown} refuses {which} (status {response.status_code}){more}")

    def _away(self, error: Exception) -> SiraError:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", line_of(str(error))) or "no answer"
        return SiraError(f"{self.shown} cannot be reached: {reason}: is the server running?")

    def _at(self, path: str) -> httpx2.URL:
        return self._url.copy_with(path=f"{self._url.path.rstrip('/')}/{path}")


def line_of(text: str) -> str:
    """Return a text from elsewhere on one line, without control characters."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def _again(error: Exception) -> float | None:
    """Return the seconds to wait before another try, as for `tried`."""
    if isinstance(error, StatusError):
        return error.after
    return 0.0 if isinstance(error, httpx2.TransportError) else None
