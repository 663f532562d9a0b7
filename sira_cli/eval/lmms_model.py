"""The model `sira` of lmms-eval: the functions that its evaluator calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.protocol import ChatMessages
from tqdm import tqdm

from sira_cli.errors import SettingsError
from sira_cli.eval.lmms import Request, answers, losses, plain_request, request_of
from sira_cli.run.lvlm import load


class _Model(lmms):  # type: ignore[misc]  # lmms-eval is not installed where types are checked
    """A loaded model under a method; subclasses read requests."""

    def __init__(
        self,
        preset: str = "",
        method: str = "sira",
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        device: str = "auto",
        task: str = "ask",
        **settings: Any,
    ) -> None:
        """Load the model; the arguments are those of `--model_args`, and lmms-eval's own."""
        super().__init__()
        if not preset:
            raise SettingsError("--model_args: preset=NAME is needed: a preset, a checkpoint folder or a model id")
        if task not in ("ask", "caption"):
            raise SettingsError(f"--model_args task={task}: expected ask or caption")
        if not str(batch_size).isdecimal() or not int(batch_size):
            raise SettingsError(f"--batch_size {batch_size}: expected a whole number from 1 on")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise SettingsError("the model sira runs in one process: leave out `accelerate launch` or torchrun")
        self.batch_size = int(batch_size)
        self._task = task
        self.lvlm = load(preset, method=method, device=device, **settings)

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """Return a text for each request."""
        found: list[GenerationResult] = [None] * len(requests)
        asked = [self._asked(request.args) for request in requests]
        answered = answers(self.lvlm, asked, self.batch_size, self._task)
        for number, answer in tqdm(answered, total=len(asked), desc="sira"):
            counts = TokenCounts(answer.prompt_tokens, answer.output_tokens, answer.reasoning_tokens)
            found[number] = GenerationResult(answer.text, counts)
        return found

    def loglikelihood(self, requests: list[Instance]) -> list[GenerationResult]:
        """Return the mean loss of each request's continuation, and whether it is the likeliest: wrapped pairs."""
        asked = []
        texts = []
        for request in requests:
            if len(request.args) != 6:
                raise SettingsError("a choice without a picture (acc_mutual_info) has no likelihood here: leave it out")
            context, target, visual, number, task, split = request.args
            document = self.task_dict[task][split][number]
            asked.append(plain_request(f"{task} {split} {number}", context, visual(document)))
            texts.append(target if isinstance(target, str) else target(document))
        return [GenerationResult(pair) for pair in losses(self.lvlm, asked, texts, self.batch_size)]

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        """Refuse: a task's next question depends on the last answer."""
        raise SettingsError(f"{requests[0].task_name}: the model sira answers tasks of one round: leave this one out")

    def _asked(self, given: Sequence[Any]) -> Request:
        raise NotImplementedError


class SiraModel(_Model):
    """Gets messages, the default of lmms-eval."""

    is_simple = False

    def _asked(self, given: Sequence[Any]) -> Request:
        _, messages_of, generation, number, task, split = given
        messages = ChatMessages(messages=messages_of(self.task_dict[task][split][number])).model_dump()["messages"]
        return request_of(f"{task} {split} {number}", messages, generation)


class SimpleSiraModel(_Model):
    """Gets a text and its pictures (`--force_simple`), as tasks of likelihoods need it."""

    is_simple = True

    def _asked(self, given: Sequence[Any]) -> Request:
        text, generation, visual, number, task, split = given
        images: Callable[[Any], Sequence[Any]] = visual
        return plain_request(f"{task} {split} {number}", text, images(self.task_dict[task][split][number]), generation)
