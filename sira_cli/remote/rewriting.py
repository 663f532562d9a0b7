"""Captions without unsupported objects: a server continues the text before each such object.

A server takes no token masks, so it is told which objects to avoid, and asked again if it names one. Sentences that
still name one at the end are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sira_cli.language.things import with_article
from sira_cli.models.loading.preset import Preset
from sira_cli.models.look.claims import Check, Claim
from sira_cli.models.look.rewritten import Rewritten
from sira_cli.models.look.sentences import without_sentences
from sira_cli.models.look.verify import Verify
from sira_cli.remote.endpoint import Endpoint


class EndpointRewriter:
    """Removes unsupported objects from texts."""

    def __init__(self, endpoint: Endpoint, preset: Preset, verify: Verify) -> None:
        """Prepare to rewrite.

        Args:
            endpoint: the server, which goes on with texts (`Endpoint.check_continues`).
            preset: its prompt of captions, their length and the threshold.
            verify: the thresholds and the rounds.
        """
        self._endpoint = endpoint
        self._prompt, self._most = preset.prompts.caption, preset.generation.max_new_tokens
        self._thresholds, self._rounds = verify.thresholds(preset), verify.most_rounds(preset)
        self._language = verify.wording(preset).code

    def rewrite(self, urls: Sequence[str], check: Check, look: Callable[[str], Check]) -> Rewritten:
        """Rewrite a text; the part before its first unsupported object stays.

        Args:
            urls: the pictures.
            check: of the text.
            look: checks another text about them.

        Raises:
            NoAnswerError: the server gave no answer.
            SiraError: the server is gone, or refuses any question.
        """
        doubted: list[Claim] = []
        for number in range(self._rounds):
            starts = {start: claim for claim in check.below(self._thresholds) for start, _ in claim.spans}
            if not starts:
                break
            doubted.append(starts[min(starts)])
            head = check.text[: min(starts)].rstrip()
            reply = self._endpoint.reply(urls, self._asked(doubted), self._most, start=head, seed=number)
            check = look(joined(head, reply.text.rstrip()))
        spans = [span for claim in check.below(self._thresholds) for span in claim.spans]
        text, dropped = without_sentences(check.text, spans, self._language)
        doubted += check.below(self._thresholds)
        check = look(text) if dropped else check
        named = {claim.key for claim in check.all}
        removed = {claim.key: claim for claim in doubted if claim.key not in named}
        return Rewritten(text, tuple(removed.values()), check)

    def _asked(self, doubted: Sequence[Claim]) -> str:
        names = dict.fromkeys(with_article(f"{claim.value} {claim.thing}".strip()) for claim in doubted)
        return f"{self._prompt} Do not mention {' or '.join(names)}."


def joined(head: str, rest: str) -> str:
    """Return a text and its continuation, whose first space a server may have dropped."""
    needs_space = head[-1:].isascii() and head[-1:].isalnum() and rest[:1].isascii() and rest[:1].isalnum()
    return f"{head}{' ' * needs_space}{rest}"
