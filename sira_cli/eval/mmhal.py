"""MMHal-Bench (Sun et al. 2023): 96 open questions; GPT-4 rates answers from 0 to 6, outside sira."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sira_cli.data.rows import brief, read_rows, text_of
from sira_cli.errors import DataError
from sira_cli.eval.base import Texts
from sira_cli.eval.card import Asking, Card
from sira_cli.eval.judged import Judged, Open
from sira_cli.eval.stats.tally import Counts, ratio
from sira_cli.files import write_whole

RATINGS = range(7)
NO_HALLUCINATION = 3  # the least rating of an answer without


class MmHal(Judged):
    """MMHal-Bench's questions; verdicts are GPT-4's words."""

    name = "mmhal"
    rates = ("hallucination", "unclear")

    def judge(self, verdict: str) -> tuple[bool, Counts]:
        """Return the rating as summarize_gpt_mmhal.py reads it: 0 if none or several are named."""
        found = [rating for rating in RATINGS if f"rating: {rating}" in verdict.lower()]
        rating = found[0] if len(found) == 1 else 0
        return rating >= NO_HALLUCINATION, {
            "rating": rating,
            "hallucination": rating < NO_HALLUCINATION,
            "unclear": len(found) != 1,
        }

    def shares(self, total: Mapping[str, float]) -> dict[str, float]:
        """Return the mean rating, and in percent hallucinations and verdicts without a clear rating."""
        rates = {name: 100 * ratio(total[name], total["verdicts"]) for name in self.rates}
        return {"rating": ratio(total["rating"], total["verdicts"])} | rates

    def verdict(self, where: str, row: Mapping[str, Any]) -> str | None:
        """Return the text of a reply of OpenAI's, as eval_gpt_mmhal.py saves it."""
        if "choices" not in row:
            return None
        try:
            text = row["choices"][0]["message"]["content"]
        except (LookupError, TypeError):
            text = None
        if not isinstance(text, str):
            raise DataError(f"{where}: expected a reply with choices[0].message.content, got {brief(dict(row), 200)}")
        return text

    def find(self, where: str, row: Mapping[str, Any], number: int) -> str:
        """Find a question by the number of its row, as the authors' script does."""
        if number >= len(self._known):
            raise DataError(f"{where}: too many rows: MMHal-Bench has {len(self._known)} questions")
        question = self._known[number]
        if row.get("question", question.text) != question.text:
            raise DataError(
                f"{where}: is about {brief(row['question'])}, but question {question.id} is {brief(question.text)}: "
                "keep the order of response_template.json"
            )
        return question.id

    def export(self, texts: Mapping[str, Texts], folder: Path) -> list[Path]:
        """Write the template with `model_answer` filled in, for eval_gpt_mmhal.py."""
        answers = texts.get(self.name, {})
        rows = [{**each.row, "model_answer": answers[each.id]} for each in self.questions if each.id in answers]
        target = folder / f"{self.name}.json"
        write_whole(target, json.dumps(rows, ensure_ascii=False, indent=2).encode())
        return [target]


def _read(folder: Path, asking: Asking) -> MmHal:
    (path,) = CARD.find(folder)
    files = sorted(file.name for file in (folder / CARD.pictures).glob("*") if file.is_file())
    known = []
    for number, (where, row) in enumerate(read_rows(path)):
        name = PurePosixPath(text_of(where, row, "image_src")).name
        picture = next((file for file in files if file.endswith(name)), name)  # the archive may put a number before it
        known.append(
            Open(str(number), picture, text_of(where, row, "question"), (text_of(where, row, "question_type"),), row)
        )
    if not known:
        raise DataError(f"{path}: holds no questions")
    return MmHal(known[: asking.limit], known)


CARD = Card(
    name=MmHal.name,
    title="Open questions about 96 pictures, rated by GPT-4 elsewhere",
    source="Sun et al. 2023",
    figures="rating, hallucination rate (of the judge's file)",
    files=("response_template.json",),
    pictures="images",
    size="96 questions and pictures",
    licence="Apache-2.0",
    url="https://huggingface.co/datasets/Shengcao1006/MMHal-Bench",
    answers="the template's rows with {model_answer}, or the replies that eval_gpt_mmhal.py saves",
    judged=True,
    read=_read,
    note="The judge is not asked: --export official writes its input, and --answers sums up its output.",
)
