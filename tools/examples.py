"""Pictures to try, and a notebook: `python -m tools.examples` makes what is in `examples/`.

The pictures have both decoders' captions and the ground truth. The rule: the first COUNT test scenes from FIRST on,
none left out, whatever the result; then README's example.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from sira_cli.demo.measure import SceneReport, load_methods, outcomes
from sira_cli.demo.questions import caption_counts, contents, hallucinated, held_out
from sira_cli.demo.scenes import Scene, render
from tools.grammar import is_right

FOLDER = Path(__file__).parent.parent / "examples"
NOTEBOOK = FOLDER / "sira.ipynb"
FIRST, COUNT = 2_900_000, 20
PAGE = """\
# Pictures to try

The first {count} test scenes from number {first:,} on; none is left out. The last row is README's example: the first
such scene where greedy decoding names an absent object and SIRA's caption is right throughout, with its numbers and
colours. The bundled model has not seen them, and no figure of its card is measured on them.
`python -m tools.examples` draws them and writes this page.

```
sira caption examples/ --preset demo
```

[A notebook](sira.ipynb) shows what decides a caption, token by token.

Compared with greedy's, SIRA's captions name fewer absent objects in {fewer} of the first {count} pictures, more in
{more}, as many in {as_many}. On the test scenes of [the model's card](../sira_cli/demo/model/README.md):

> {shipped}

**Bold**: named, but not in the picture.

| picture | objects | greedy | SIRA |
|---|---|---|---|
{rows}
"""


def scenes(first: int = FIRST) -> list[Scene]:
    """Return COUNT scenes from a number on."""
    return [held_out(seed) for seed in range(first, first + COUNT)]


def readme_example() -> Scene:
    """Return the first scene where greedy decoding names an absent object and SIRA's caption is right throughout."""
    said = ((batch, captions(batch)) for batch in map(scenes, itertools.count(FIRST, COUNT)))
    shown = (each for batch, by in said for each in zip(batch, by["greedy"], by["sira"], strict=True))
    return next(scene for scene, greedy, sira in shown if hallucinated(scene, greedy) and is_right(scene, sira))


def captions(shown: Sequence[Scene]) -> dict[str, list[str]]:
    """Return by method the caption of each scene."""
    pictures = [render(scene)[0] for scene in shown]
    return {
        method: [
            answer.text for answer in lvlm.answer(lvlm.prepare(pictures, [lvlm.preset.prompts.caption] * len(shown)))
        ]
        for method, lvlm in load_methods().items()
    }


def page(shown: Sequence[Scene], texts: Mapping[str, Sequence[str]]) -> str:
    """Return the text of `examples/README.md`."""
    rows = [
        f'| <img src="{name(scene)}" width="200"> | {scene.place}: {contents(scene)} '
        f"| {marked(scene, greedy)} | {marked(scene, sira)} |"
        for scene, greedy, sira in zip(shown, texts["greedy"], texts["sira"], strict=True)
    ]
    greedy, sira = (
        {str(scene.seed): caption_counts(scene, text) for scene, text in zip(shown[:COUNT], said[:COUNT], strict=True)}
        for said in (texts["greedy"], texts["sira"])
    )
    found = outcomes(greedy, sira)
    return PAGE.format(
        count=COUNT,
        first=FIRST,
        rows="\n".join(rows),
        fewer=found["fewer"],
        more=found["more"],
        as_many=found["as many"],
        shipped=SceneReport.shipped().outcomes_line(),
    )


def name(scene: Scene) -> str:
    """Return the name of a scene's picture."""
    return f"scene-{scene.seed}.png"


def readme_picture() -> str:
    """Return the name of the picture of README's example: the last row of the written page."""
    *_, last = re.findall(r"scene-\d+\.png", (FOLDER / "README.md").read_text(encoding="utf-8"))
    return str(last)


def marked(scene: Scene, text: str) -> str:
    """Return a caption with absent objects in bold."""
    for start, end in reversed(hallucinated(scene, text)):
        text = f"{text[:start]}**{text[start:end]}**{text[end:]}"
    return text


def run_notebook(path: Path) -> nbformat.NotebookNode:
    """Run the cells of a notebook where it lies, and return it with what they print and draw, warnings left out."""
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=600, resources=where, record_timing=False)
    notebook = client.execute()
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main() -> None:
    """Draw the pictures, write the page and run the notebook."""
    shown = [*scenes(), readme_example()]
    for scene in shown:
        render(scene)[0].save(FOLDER / name(scene))
    (FOLDER / "README.md").write_text(page(shown, captions(shown)), encoding="utf-8")
    nbformat.write(run_notebook(NOTEBOOK), NOTEBOOK)


if __name__ == "__main__":
    main()
