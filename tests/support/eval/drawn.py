"""Drawn scenes in the formats of HallusionBench, PhD, MMHal-Bench and HaloQuest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sira_cli.demo.questions import held_out
from sira_cli.demo.scenes import TEST_SEEDS, Scene, render
from sira_cli.demo.world import OBJECTS
from tests.support.eval.writing import save

SCENES = [held_out(seed) for seed in TEST_SEEDS[:4]]


def draw(scene: Scene, path: Path) -> None:
    """Save a scene's picture; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    render(scene)[0].save(path)


def absent(scene: Scene, count: int = 1) -> list[str]:
    return [name for name in OBJECTS if name not in scene.objects][:count]


def hallusion(folder: Path) -> Path:
    """HallusionBench's file and pictures: sets of two scenes, asked the same three questions."""
    questions = []
    for number, pair in enumerate((SCENES[:2], SCENES[2:])):
        names = [*list(pair[0].objects)[:2], *absent(pair[0])]
        for figure, scene in enumerate(pair):
            picture = f"./VD/drawn/{number}_{figure}.png"
            draw(scene, folder / "hallusion_bench" / picture)
            for question, name in enumerate(names):
                about = {"category": "VD", "subcategory": "drawn", "visual_input": str(1 + figure)}
                ids = {"set_id": str(number), "figure_id": str(figure), "question_id": str(question)}
                truth = {"question": f"Is there a {name} in the image?", "gt_answer": str(int(name in scene.objects))}
                questions.append(about | ids | truth | {"filename": picture})
    blind = {"category": "VS", "visual_input": "0", "filename": None, "figure_id": "0"}
    save(folder / "HallusionBench.json", [*questions, questions[0] | blind])
    return folder


def phd(folder: Path) -> Path:
    """PhD's file and pictures: a scene of COCO's training pictures, two of its others, one against common sense."""
    places = ("train2014/COCO_train2014_{:012d}.jpg", "val2014/COCO_val2014_{:012d}.jpg")
    content = []
    for number, scene in enumerate(SCENES):
        there, not_there = next(iter(scene.objects)), *absent(scene)
        task = ("object recognition", "attribute recognition")[number % 2]
        questions = {"yes_question": f"Is there a {there}?", "no_question": f"Is there a {not_there}?"}
        more: dict[str, Any] = {"context": {"iac": "It is a nice day.", "icc": f"There is a {not_there}."}}
        picture = places[number > 0].format(number)
        if number == 3:
            more, picture = {"ccs_description": "odd"}, f"CCS_images/{number}.png"
        draw(scene, folder / "images" / picture)
        content.append({"image_id": str(number), "task": task} | questions | more)
    save(folder / "data.json", content)
    return folder


def mmhal(folder: Path) -> Path:
    """MMHal-Bench's template, and pictures with a number before their names, as in the archive."""
    content = []
    for number, scene in enumerate(SCENES):
        draw(scene, folder / "images" / f"{number:02d}_{scene.seed}_o.jpg")
        about = {"question_type": ("attribute", "counting")[number % 2], "question_topic": "drawn", "image_id": "a"}
        source = {"image_src": f"https://example.org/7/{scene.seed}_o.jpg", "image_content": list(scene.objects)}
        truth = {"question": f"What is in picture {number}?", "gt_answer": "Objects.", "model_answer": ""}
        content.append(about | source | truth)
    save(folder / "response_template.json", content)
    return folder


def haloquest(folder: Path) -> Path:
    """HaloQuest's table: of each scene a question about an object that is not there, and one about all."""
    rows = ["\ufeff,image_name,url,image type,hallucination type,question,groundtruth responses,split"]
    for scene in SCENES:
        name, *_ = absent(scene)
        draw(scene, folder / "images" / f"{scene.seed}.png")
        about = f"{scene.seed}.png,https://example.org/{scene.seed}.png,generated"
        rows.append(
            f'{len(rows) - 1},{about},false premises,What colour is the {name}?,"No {name}; there is none, no",eval'
        )
        rows.append(f"{len(rows) - 1},{about},visual challenge,What is there?,Objects,eval")
    save(folder / "haloquest-eval.csv", "\n".join(rows) + "\n")
    return folder
