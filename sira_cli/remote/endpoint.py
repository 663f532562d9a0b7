"""A server that speaks OpenAI's chat protocol: its answers about pictures, with probabilities if it tells them.

endpoint = Endpoint("http://localhost:11434/v1", "qwen3-vl:8b")
source = endpoint.begin("Is there a dog in the image?")     # "logprobs" or "answer"
(yes, no), neither = endpoint.ask(data_url, "Is there a dog in the image?")
reply = endpoint.reply([data_url], "What is there?", 100)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from PIL import Image

from sira_cli.errors import NoAnswerError, SettingsError, SiraError
from sira_cli.pictures.data_url import encoded
from sira_cli.remote.answer import NO, YES, Reply, read_answers
from sira_cli.remote.client import SECONDS, SHORT, Client, StatusError, line_of

YES_OR_NO = {"yes": YES, "no": NO}
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
# Asks to go on with the last message, if it is the assistant's; others do so without being asked, or cannot.
_GO_ON = {"continue_final_message": True, "add_generation_prompt": False}
_CONTINUING: dict[str, dict[str, Any]] = {"vllm": _GO_ON, "sglang": _GO_ON}
_NOT_REASONING = "choose a model that does not reason first"
_NAMED = 1_000  # characters of the names of models in a message
_PROBED, _UNUSUAL = 24, "In short:"  # tokens of a text, and words that do not begin one


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
            SettingsError: the address or the key is invalid.
        """
        self._model, self._system = model, system
        self._client = Client(address, model, seconds=seconds, key=key)
        self.shown = self._client.shown
        self._more: dict[str, Any] = {}
        self._top, self._told = _TOPS[0], False  # the second: whether the server is known to tell them
        self._limit = "max_tokens"
        self._continuing: dict[str, Any] = {}

    def begin(self, question: str) -> str:
        """Ask about an empty picture, to learn how the server answers.

        Args:
            question: any.

        Returns:
            `logprobs`: the server tells probabilities; `answer`: it says yes or no, which count as 1 and 0.

        Raises:
            SiraError: the server is away, refuses, or does not know the model.
        """
        owner, url = self._owner(), _empty_picture()
        self._more, self._continuing = _OWN_WORDS.get(owner, {}), _CONTINUING.get(owner, {})
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
        """Ask for one token, by the name that the server has for the limit."""
        try:
            return self.reply([picture], question)
        except StatusError as error:
            if self._limit != "max_tokens" or "max_completion_tokens" not in str(error):
                raise
            self._limit = "max_completion_tokens"
            return self.reply([picture], question)

    def ask(
        self, picture: str, question: str, answers: Mapping[str, Sequence[str]] = YES_OR_NO, *, single: bool = True
    ) -> tuple[list[float], float]:
        """Return the probability of each answer against the others, and that of any other reply.

        Args:
            picture: as a data URL.
            question: in its final wording.
            answers, single: as for `read_answers`; spellings by value.

        Raises:
            NoAnswerError: the reply matches no answer.
            SiraError: the server is gone, or refuses any question.
        """
        reply = self.reply([picture], question)
        found = read_answers(reply, [*answers.values()], single=single)
        if found is None:
            expected = " or ".join(some[0].lower() for some in answers.values())
            raise self.unlike(reply, question, expected, "choose a model that answers with one of these words")
        return found

    def unlike(self, reply: Reply, question: str, expected: str, advice: str) -> NoAnswerError:
        """Return the error for a reply with an unexpected beginning.

        Args:
            reply: of the server.
            question: in its final wording.
            expected: how replies should begin.
            advice: for the message, if the model does not reason.
        """
        said = line_of(reply.beginning)[:SHORT]
        return NoAnswerError(
            f"{self._model} begins its answer to {question!r} with {said!r}, expected {expected}: "
            f"{_NOT_REASONING if reply.reasons else advice}"
        )

    def only_reasons(self, reply: Reply, question: str) -> NoAnswerError:
        """Return the error for a reply that holds only reasoning."""
        longer = "raise max_new_tokens, or " * (reply.finish_reason == "length")
        return NoAnswerError(
            f"{self._model} sends reasoning alone, expected an answer to {question!r}: {longer}{_NOT_REASONING}"
        )

    def end(self) -> None:
        """Abandon running requests, and close the connections."""
        self._client.end()

    def reply(
        self, pictures: Sequence[str], text: str, max_tokens: int = 1, *, start: str = "", seed: int = 0
    ) -> Reply:
        """Return the likeliest answer, or a sampled one.

        Args:
            pictures: data URLs; all are sent in one message.
            text: the question or prompt.
            max_tokens: length limit of the answer.
            start: beginning of the answer, which the server continues; not part of the reply.
            seed: 0 for the likeliest answer; any other samples at temperature 1.

        Raises:
            NoAnswerError: the server gave no answer, or none of the probabilities that it gave before.
            SiraError: as `ask`.
        """
        images: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
        content = [*images, {"type": "text", "text": text}]
        system = [{"role": "system", "content": self._system}] if self._system else []
        scored = self._top > 0 and not start  # the first token of an answer is not that of its rest
        scores = {"logprobs": True, "top_logprobs": self._top} if scored else {}
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [*system, {"role": "user", "content": content}],
            self._limit: max_tokens,
            "temperature": 0,
            **scores,
            **self._more,
        }
        if start:
            body["messages"].append({"role": "assistant", "content": start})
            body |= self._continuing
        if seed:
            body |= {"temperature": 1, "seed": seed}
        response = self._client.post("chat/completions", body)
        try:
            reply = Reply.of(response.json())
        except ValueError:
            reply = None
        if reply is None:
            raise NoAnswerError(
                f"{self.shown} does not answer in OpenAI's chat protocol: {self._client.said(response)!r}"
            )
        if reply.refusal:
            raise NoAnswerError(f"{self.shown} refuses to answer {text!r}: {line_of(reply.refusal)[:SHORT]}")
        if scored and not reply.top and self._told:
            raise NoAnswerError(f"{self.shown} sent an answer without log-probabilities, unlike before")
        return replace(reply, text=reply.text.removeprefix(start)) if start else reply

    def _owner(self) -> str:
        """Return the kind of server, from its list of models; empty without a list.

        Raises:
            SiraError: nobody answers, or the key is wrong.
        """
        response = self._client.get("models")
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            models = response.json()["data"]
            named = [model for model in models if model.get("id") == self._model]
            return str((named or models)[0].get("owned_by"))
        return ""


def only_model(address: str, *, seconds: float = SECONDS, key: str = "") -> str:
    """Return the name of a server's model, where it has just one.

    Args:
        address: of the protocol, usually with `/v1` at its end.
        seconds: time limit of the answer.
        key: API key; never in a message.

    Raises:
        SettingsError: the server lists no model or several, which the message names; or as `Endpoint`.
        SiraError: nobody answers, or the key is wrong.
    """
    client = Client(address, "", seconds=seconds, key=key)
    names: list[str] = []
    try:
        with suppress(ValueError, LookupError, TypeError):
            names = [line_of(str(model["id"])) for model in client.get("models").json()["data"]]
    finally:
        client.end()
    if len(names) == 1:
        return names[0]
    listed = f"has {len(names)} models: {', '.join(names)[:_NAMED]}" if names else "lists no models"
    raise SettingsError(f"{client.shown} {listed}: choose one by `model=`")


def _empty_picture() -> str:
    return encoded(Image.new("RGB", (64, 64), "grey"))
