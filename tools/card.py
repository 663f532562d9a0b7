"""Measure a trained model on the test scenes and write its card: `python -m tools.card`.

K and alpha are the preset's, chosen on the validation scenes by `sira sweep --captions --json`, whose output is
`compared/sira.json`. The test scenes are for released models; trials use the validation scenes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import transformers

from sira_cli.analysis.bench.measure import device_name
from sira_cli.analysis.experiment import Units
from sira_cli.analysis.sweep_report import SweepReport
from sira_cli.demo.measure import FIGURES, SceneReport, load_methods, markdown, measure, read_figures, texts_of
from sira_cli.demo.questions import SPLITS, Questions, held_out, mentions
from sira_cli.demo.scenes import (
    COUNTS,
    OBJECTS,
    PLACES,
    STRAY,
    TEST_SEEDS,
    TRAINING_SEEDS,
    VALIDATION_SEEDS,
    WEAK,
    Scene,
    render,
)
from sira_cli.eval.figures import ANSWER_FIGURES
from sira_cli.eval.statistics import Figure, MethodFigures, Tally
from sira_cli.models.presets import BUNDLED_FOLDER
from sira_cli.models.schema import Schema
from sira_cli.run.items import batches
from sira_cli.run.lvlm import Lvlm
from tools.choose import FOLDER
from tools.comparison import add_text_figures, kinds_f1
from tools.language import TYPICAL_SHARE
from tools.support import BATCH, from_json, measure_words, words_table
from tools.texts import BLIND_QUESTIONS, NUMBER_WEIGHT, OTHER_QUESTIONS

TRAINING = BUNDLED_FOLDER / "training.json"  # by `tools.train`
CHOSEN = FOLDER / "sira.json"  # by `sira sweep`
CHOICE = ("CHAIRs", "CHAIRi", "coverage", "words", "random accuracy", "adversarial accuracy", "adversarial yes")
CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
---

# The model that comes with `sira`

A LLaVA-1.5 in miniature, trained from scratch by this project: {parameters:,} parameters, {layers} decoder layers,
{image_tokens} image tokens. It describes drawn scenes, answers questions about them, and hallucinates as large models
do: it names objects typical of a place, whether they are in the picture or not. It is a test bed and a demonstration.

## Data

Scenes drawn by `sira_cli/demo`: {places} kinds of places, {objects} kinds of objects; no photographs, nothing from
other sources. Typical objects of a place are present with a probability of up to {commonest:.0%}; an untypical object
is in {stray:.0%} of the scenes. {several:.0%} of the kinds have two or three objects, which stand side by side;
{weak:.0%} of the single objects give weak evidence: small, faint or mostly hidden.
The tower learns from scenes with broken co-occurrence, so that it sees the objects whatever the place; the decoder
learns co-occurrence from scenes of which {odd:.0%} are broken. Training captions name every object in
the picture; {typical:.0%} of the training questions about absent objects ask for objects typical of the place, the
others for any object.
Seeds {training} train, {validation} validate, {test} test.

## Training

{training_facts}

## K and alpha

On {validation_scenes} validation scenes (`sira sweep -p demo --captions`), by the rule in
`sira_cli/analysis/caption_rule.py`: {outcome}.

{choice}

## Figures

On {scenes:,} test scenes; in every second one the objects are not typical of the place. In percent,
± half a 95 % interval over scenes. SIRA with {sira}.
`python -m tools.card` measured these tables and wrote this card, with torch {torch} and transformers {transformers} on
{machine}.

CHAIRs: share of captions that name an absent object. CHAIRi: share of named objects that are absent. Coverage: share
of the scene's objects that are named. Instances: share of the named instances of the scene's objects that do not exist,
such as a second bus. Broken: share of texts with a fault of grammar. Right: share of texts that are right but for
absent objects: their grammar, place, numbers and colours, and nothing is named twice.

{captions}

{outcomes}

Yes/no questions as in POPE, half of them about objects in the picture.

{answers}

Scores of object words (`sira caption --words`): AUROC for true against hallucinated ones, 50 is chance.
grounding: probability under the contrast. delta: z_full - z_cf. probability: under the full stream alone.

{words}

Kinds of objects named in captions, and in lists (`--tags`): F1, in percent. Brackets: paired difference to the
captions, ± half its 95 % interval.

{tags}

[The second look and other methods](../../../docs/results.md) on the same scenes.

## Limits

It knows {objects} objects, {places} places and no photographs. Its English is that of its templates: it names objects
in one order, and says nothing about where they are.

## Licence

Apache-2.0, weights and data.
"""


def card(figures: dict[str, Any], sira: Any, training: dict[str, Any], choice: dict[str, Any]) -> str:
    """Return the text of the model card, from the files of `train`, `sira sweep` and `write_figures`."""
    report = SceneReport.from_json(figures)
    recipe = training["recipe"]
    scenes = max(recipe["vision_scenes"], recipe["language_scenes"])
    swept = SweepReport.from_json(json.dumps(choice))
    rows = [["K", "alpha", *CHOICE]]
    for row in swept.rows:
        rows.append([str(row.k or "-"), f"{row.alpha:g}", *(f"{row.figures[name].value:.1f}" for name in CHOICE)])
    outcome = f"K = {swept.best.k} and alpha = {swept.best.alpha:g}"
    if not swept.fulfils:
        outcome += ", which no setting fulfils and this one misses by the least"
    return CARD.format(
        parameters=sira.model.num_parameters(),
        layers=sira.layers,
        image_tokens=sira.model.config.image_seq_length,
        places=len(PLACES),
        objects=len(OBJECTS),
        commonest=max(chance for place in PLACES.values() for chance in place.objects.values()),
        several=1 - COUNTS[1],
        stray=STRAY,
        weak=WEAK,
        odd=recipe["odd_scenes"] / (recipe["odd_scenes"] + recipe["language_scenes"]),
        typical=TYPICAL_SHARE,
        validation_scenes=choice["pictures"],
        outcome=outcome,
        choice=markdown(rows),
        training=_span(TRAINING_SEEDS[:scenes]),
        validation=_span(VALIDATION_SEEDS),
        test=_span(TEST_SEEDS),
        training_facts="\n".join(f"- {line}" for line in _training_lines(training)),
        scenes=report.scenes,
        sira=f"K = {sira.k} of {sira.layers} and alpha = {sira.preset.sira.alpha:g}",
        torch=torch.__version__,
        transformers=transformers.__version__,
        machine=device_name(torch.device("cpu")),
        captions=report.captions_table(),
        outcomes=report.outcomes_line(),
        answers=answers_table(report),
        words=words_table(from_json(figures["words"])),
        tags=tags_table(figures["tags"]),
    )


def _training_lines(training: dict[str, Any]) -> list[str]:
    recipe = training["recipe"]
    stages = training["stages"]

    def minutes(stage: str) -> str:
        return f"{stages[stage]['seconds'] / 60:.0f} minutes, last loss {stages[stage]['loss']:.3f}"

    return [
        f"`python -m tools.train`, seed {recipe['seed']}, on {training['machine']}, torch {training['torch']}.",
        (
            "Vision tower and projector, to recognise the objects under each patch, their colours and numbers, and the "
            "place: "
            f"{recipe['vision_steps']:,} steps of {recipe['vision_batch']} pictures, {minutes('vision')}."
        ),
        (
            "Decoder, on the frozen image features: a caption of each picture, its kinds of objects as a JSON list, "
            f"and {recipe['questions'] + OTHER_QUESTIONS} questions about it; as large models learn from texts too, a "
            f"caption of another scene and {BLIND_QUESTIONS} questions about that without a picture; and a caption "
            "whose picture is hidden from a random layer on. What says how many there are of an object has "
            f"{NUMBER_WEIGHT:g} times the weight: "
            f"{recipe['language_steps']:,} steps of {recipe['language_batch']} pictures, {minutes('language')}."
        ),
        (
            "The decoder again, and of the captions that see the picture in early layers only each is of another "
            "scene, so that late layers which do not see a picture say what is typical, as SIRA expects it of large "
            f"models: {recipe['late_steps']:,} steps, {minutes('late')}, with labels smoothed by "
            f"{recipe['late_smoothing']:g}. The weights are the mean of those before and after these steps."
        ),
    ]


def answers_table(report: SceneReport) -> str:
    """Return POPE's figures in its three splits in Markdown."""
    rows = [["split", "", *ANSWER_FIGURES]]
    for split in SPLITS:
        for row in report.rows([f"{split} {name}" for name in ANSWER_FIGURES]):
            rows.append([split, *row])
    return markdown(rows)


def _span(seeds: range) -> str:
    return f"{seeds.start:,} to {seeds.stop - 1:,}"


def measure_tags(methods: Mapping[str, Lvlm], scenes: Sequence[Scene]) -> dict[str, dict[str, Figure]]:
    """Measure the F1 of the kinds of objects in each decoder's captions and lists, and the paired difference."""
    found, schema = {}, Schema.of("tags")
    for name, lvlm in methods.items():
        tallies = {"captions": Tally(), "tags": Tally()}
        for batch in batches(scenes, BATCH):
            pictures = [render(scene)[0] for scene in batch]
            captions = texts_of(lvlm, pictures, [lvlm.preset.prompts.caption] * len(batch))
            lists = lvlm.answer(lvlm.prepare(pictures, [schema.prompt] * len(batch)), schemas=[schema] * len(batch))
            for scene, caption, listed in zip(batch, captions, lists, strict=True):
                kinds = {"captions": {kind for _, _, kind in mentions(caption)}, "tags": {*(listed.data or ())}}
                for way, named in kinds.items():
                    right = len(named & {*scene.objects})
                    row = {"kinds": len(named), "objects": len(scene.objects), "recalled objects": right}
                    tallies[way].counts[str(scene.seed)] = {key: float(count) for key, count in row.items()}
        compared = MethodFigures.of(tallies, kinds_f1)
        change = compared.differences("tags", "captions")
        found[name] = {way: compared.figures(way)["F1"] for way in tallies} | {"difference": change["F1"]}
    return found


def tags_table(found: dict[str, dict[str, Any]]) -> str:
    """Return the table in Markdown, of `measure_tags` or its JSON."""
    rows = [["", "captions", "tags"]]
    for name, row in found.items():
        captions, tags, difference = (Figure(**row[key]) for key in ("captions", "tags", "difference"))
        rows.append([name, f"{captions}", f"{tags.value:.1f} ({difference:+})"])
    return markdown(rows)


def write_figures(
    report: SceneReport, words: dict[str, dict[str, Any]], tags: dict[str, Any], path: Path = FIGURES
) -> None:
    """Write the file that `read_figures` reads."""
    figures = {**vars(report), "words": words, "tags": tags}
    content = json.dumps(figures, indent=1, default=dataclasses.asdict)
    path.write_text(content + "\n", encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.card", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000, help="scenes")
    parser.add_argument("--texts", type=Path, metavar="FILE.jsonl", help="kept texts, as of `tools.comparison`")
    parser.add_argument("--text-only", action="store_true", help="rewrite the card, measure nothing")
    given = parser.parse_args()
    methods = load_methods()
    if not given.text_only:
        scenes = [held_out(seed) for seed in TEST_SEEDS[: given.count]]
        said = lambda done: print(f"{done} of {given.count} scenes", flush=True)  # noqa: E731
        with closing(Units[list[str]](given.texts)) as units:
            units.begin({"scenes": "drawn"})
            report = measure(methods, scenes, Questions(), said, units)
            add_text_figures(report, methods, scenes, Questions(), units)
        write_figures(report, measure_words(methods, scenes), measure_tags(methods, scenes))
    training, choice = (json.loads(path.read_text(encoding="utf-8")) for path in (TRAINING, CHOSEN))
    text = card(read_figures(), methods["sira"], training, choice)
    (BUNDLED_FOLDER / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
