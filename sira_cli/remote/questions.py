"""Questions to a server about each picture: about a caption's objects, or the user's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

from sira_cli.data.captions.captioned import CaptionedPicture
from sira_cli.data.records.record import Answer
from sira_cli.language.things import Thing
from sira_cli.models.loading.preset import Preset
from sira_cli.models.look.claims import LIST_TOKENS, Claim, best_of
from sira_cli.models.look.finding import ObjectFinder
from sira_cli.models.look.verify import Verify
from sira_cli.pictures.picture import Picture
from sira_cli.remote.answer import check_choices, read_choices, read_yes
from sira_cli.remote.endpoint import Endpoint

NO_PROBABILITIES = "the server tells no probabilities: 1 for its answer"


class Questions(ABC):
    """The questions that a server answers about each picture.

    Attributes:
        looked: settings of the second look, for keys; None without one.
    """

    looked: dict[str, Any] | None = None

    def __init__(self, endpoint: Endpoint, preset: Preset) -> None:
        self._endpoint, self._preset = endpoint, preset

    @abstractmethod
    def begin(self) -> None:
        """Ask a first question about an empty picture.

        Raises:
            SiraError: the server is away, refuses, or does not know the model.
        """

    @abstractmethod
    def answer(self, urls: Sequence[str], asked: str, picture: Picture) -> Answer:
        """Return the answer about a picture.

        Args:
            urls: the picture as a data URL; several share one prompt.
            asked: the prompt.
            picture: the picture itself.

        Raises:
            NoAnswerError: the server gave no answer.
            SiraError: the server is gone, or refuses any question.
        """

    @abstractmethod
    def no_answer(self, error: str) -> Answer:
        """Return the answer about a picture that failed."""


class ClaimQuestions(Questions):
    """Questions about the objects that captions name. Pictures are `CaptionedPicture`s."""

    looked: dict[str, Any]

    def __init__(self, endpoint: Endpoint, preset: Preset, how: Verify) -> None:
        super().__init__(endpoint, preset)
        self._finder = ObjectFinder(how, preset)
        self.looked = how.settings(preset)

    def begin(self) -> None:
        """Ask about an object, to learn whether the server gives probabilities."""
        some = self._finder.words.things("a dog") or [Thing("dog", (), "dog")]
        self.looked["source"] = self._endpoint.begin(self._finder.question(some[0]))

    def answer(self, urls: Sequence[str], asked: str, picture: Picture) -> Answer:
        """Ask about each claim of a caption, separately for each picture."""
        text = cast(CaptionedPicture, picture).text

        def ask(new: Sequence[Thing]) -> list[Claim]:
            return best_of([[self._claim(url, thing) for thing in new] for url in urls])

        named = self._finder.named(text, lambda prompt: self._endpoint.reply(urls[:1], prompt, LIST_TOKENS).text)
        return self._finder.check(text, named, {}, ask).added_to(Answer(text, "stop"), self.looked)

    def _claim(self, url: str, thing: Thing) -> Claim:
        shares, neither = self._endpoint.ask(url, self._finder.question(thing))
        return Claim(thing.name, thing.spans, shares[0], neither)

    def no_answer(self, error: str) -> Answer:
        """Return the answer about a picture that failed."""
        return Answer(objects=[], verify=self.looked, error=error)


class OwnQuestions(Questions):
    """A question about each picture: a text, with the probability of yes if it says yes or no, or a choice."""

    _source = "logprobs"

    def __init__(self, endpoint: Endpoint, preset: Preset, prompt: str, choices: Sequence[str]) -> None:
        super().__init__(endpoint, preset)
        self._prompt, self._choices = prompt, choices
        check_choices(choices)

    def begin(self) -> None:
        """Ask the question about an empty picture."""
        self._source = self._endpoint.begin(self._prompt)

    def answer(self, urls: Sequence[str], asked: str, picture: Picture) -> Answer:
        """Ask the question about a picture."""
        if self._choices:
            return self._choice(urls, asked)
        reply = self._endpoint.reply(urls, asked, self._preset.generation.max_new_tokens)
        if reply.reasoning is not None and not reply.text.strip():
            raise self._endpoint.only_reasons(reply, asked)
        answer = Answer(
            reply.text.strip(),
            reply.finish_reason,
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            reasoning=reply.reasoning,
            support=read_yes(reply),
        )
        return self._preset.text.finished(answer)

    def _choice(self, urls: Sequence[str], asked: str) -> Answer:
        choices, reply = self._choices, self._endpoint.reply(urls, asked)
        found = read_choices(reply, choices)
        if found is None:
            advice = "name the choices in the question, or reword them"
            raise self._endpoint.unlike(reply, asked, f"one of {', '.join(choices)}", advice)
        return Answer(
            choices[found.index(max(found))],
            "stop",
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            choices=[
                {"choice": choice, "probability": {"full": share}} for choice, share in zip(choices, found, strict=True)
            ],
            warnings=(NO_PROBABILITIES,) if self._source == "answer" else (),
        )

    def no_answer(self, error: str) -> Answer:
        """Return the answer about a picture that failed."""
        return Answer(error=error, choices=[] if self._choices else None)
