"""A control of the second look: the bundled model trained without questions about some of its objects.

`python -m tools.train --out control --tower sira_cli/demo/model --unasked apple,banana,...` trains it, and
`python -m tools.unasked control --answers FOLDER -o` compares it with the bundled model on test scenes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sira_cli.analysis.sweep.grid import batches
from sira_cli.demo.language import article, mentions
from sira_cli.demo.measure import load_method
from sira_cli.demo.questions import held_out
from sira_cli.demo.scene_report import markdown
from sira_cli.demo.scenes import TEST_SEEDS, Scene, render
from sira_cli.demo.world import OBJECTS
from sira_cli.eval.stats.auroc import auroc_interval
from sira_cli.eval.stats.intervals import Figure
from sira_cli.eval.stats.tally import ratio
from sira_cli.models.final_answers import FinalAnswers
from sira_cli.models.loading.presets import BUNDLED_FOLDER
from sira_cli.models.look.second_look import SecondLook
from sira_cli.models.look.verify import Verify
from sira_cli.models.lvlm import Lvlm
from tools.chosen import FOLDER

FILE = FOLDER / "unasked.json"
BATCH = 20
MODELS = {"bundled": "the bundled model", "control": "the control"}


def ask(lvlm: Lvlm, scenes: Sequence[Scene]) -> Iterable[dict[str, Any]]:
    """Yield for each scene its objects, the support of all objects, and the captions of greedy and greedy + guide."""
    look, answering = SecondLook(lvlm, Verify()), {"greedy": FinalAnswers(lvlm)}
    answering["guide"] = FinalAnswers(lvlm, Verify(mode="guide"))
    things = [look.finder.words.things(f"There is {article(name)} {name}.")[0] for name in OBJECTS]
    for part in batches(scenes, BATCH):
        pictures, prompts = [render(scene)[0] for scene in part], [lvlm.preset.prompts.caption] * len(part)
        seeds = lvlm.text_seeds([str(scene.seed) for scene in part], prompts)
        texts = {
            name: one.answer(pictures, lvlm.prepare(pictures, prompts), seeds=seeds, task="caption")
            for name, one in answering.items()
        }
        for row, (scene, picture) in enumerate(zip(part, pictures, strict=True)):
            supports = [claim.support for claim in look.claims(picture, things)]
            support = dict(zip(OBJECTS, supports, strict=True))
            captions = {name: answers[row].text for name, answers in texts.items()}
            yield {"seed": scene.seed, "true": sorted(scene.objects), "support": support, **captions}


def figures(rows: Sequence[dict[str, Any]], names: set[str]) -> dict[str, Any]:
    """Return AUROC of support over some of the objects, CHAIRi and coverage of the captions among them, in percent."""
    asked = [(number, name) for number, row in enumerate(rows) for name in OBJECTS if name in names]
    there = np.array([name in rows[number]["true"] for number, name in asked])
    support = np.array([rows[number]["support"][name] for number, name in asked])
    found: dict[str, Any] = {
        "auroc": auroc_interval(np.array([number for number, _ in asked]), there, support, len(rows))
    }
    for way in ("greedy", "guide"):
        named = [[name for _, _, name in mentions(row[way]) if name in names] for row in rows]
        wrong = sum(name not in row["true"] for row, own in zip(rows, named, strict=True) for name in own)
        recalled = sum(len(names & {*row["true"]} & {*own}) for row, own in zip(rows, named, strict=True))
        present = sum(len(names & {*row["true"]}) for row in rows)
        mentioned = sum(map(len, named))
        found[way] = {
            "CHAIRi": 100 * ratio(wrong, mentioned),
            "coverage": 100 * ratio(recalled, present),
            "mentions": mentioned,
        }
    return found


def table(record: dict[str, Any]) -> str:
    """Return the record in Markdown."""
    unasked = record["unasked"]
    rows = [["model", "objects", "AUROC of support", "greedy: CHAIRi, coverage", "greedy + guide: CHAIRi, coverage"]]
    for model, groups in record["models"].items():
        for group, found in groups.items():
            cells = [f"{found[way]['CHAIRi']:.1f}, {found[way]['coverage']:.1f}" for way in ("greedy", "guide")]
            shown = f"these {len(unasked)}" if group == "unasked" else f"the other {len(OBJECTS) - len(unasked)}"
            rows.append([MODELS[model], shown, f"{Figure(**found['auroc'])}", *cells])
    *some, last = unasked
    return (
        f"On {record['scenes']} test scenes, in percent. The control saw no question about {', '.join(some)} or {last}."
        f"\n\n{markdown(rows)}"
    )


def shipped() -> str:
    """Return the table of the record."""
    return table(json.loads(FILE.read_text(encoding="utf-8")))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.unasked", description="Compare a control.")
    parser.add_argument("control", type=Path, help="folder of its checkpoint")
    parser.add_argument("--count", type=int, default=200, help="number of test scenes")
    parser.add_argument("--answers", type=Path, required=True, metavar="FOLDER", help="keep answers here, to go on")
    parser.add_argument("-o", "--output", type=Path, nargs="?", const=FILE, metavar="FILE.json")
    given = parser.parse_args()
    scenes = [held_out(seed) for seed in TEST_SEEDS[: given.count]]
    recipe = json.loads((given.control / "training.json").read_text(encoding="utf-8"))["recipe"]
    unasked = recipe["unasked"].split(",")
    models = {}
    for model, folder in (("bundled", BUNDLED_FOLDER), ("control", given.control)):
        file = given.answers / f"{model}.jsonl"
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
        if left := scenes[len(rows) :]:
            with file.open("a", encoding="utf-8") as kept:
                for row in ask(load_method("greedy", folder), left):
                    kept.write(json.dumps(row) + "\n")
                    rows.append(row)
        groups = {"unasked": {*unasked}, "others": {*OBJECTS} - {*unasked}}
        models[model] = {group: figures(rows, names) for group, names in groups.items()}
    record = {"scenes": len(scenes), "unasked": unasked, "recipe": recipe, "models": models}
    print(table(json.loads(json.dumps(record, default=vars))))
    if given.output is not None:
        given.output.write_text(json.dumps(record, indent=1, default=vars) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
