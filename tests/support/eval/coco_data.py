"""A few images as COCO describes them, and captions of them to be scored."""

from __future__ import annotations

from pathlib import Path

from tests.support.eval.writing import save

CATEGORIES = ["person", "dog", "cat", "car", "toilet", "chair", "dining table", "wine glass"]
IMAGES = {  # objects, reference captions
    7: (["person", "dog"], ["A man walks his dogs.", "A boy near a bench"]),
    8: (["car", "car"], ["Cars on a road."]),
    310196: ([], ["Nothing much."]),
}
CAPTIONS = {
    # 7: person, dog and bench are there; the cat twice and the car are not.
    "7": "A woman with a dog and a cat; the cat is near a car.",
    "8": "Two cars.",
    "310196": "",
}


def write_coco(folder: Path, images=IMAGES, split: str = "val", year: str = "2014") -> Path:
    """COCO's files about a few images."""
    listed = [{"id": image, "file_name": f"COCO_{split}{year}_{image:012d}.jpg"} for image in images]
    categories = [{"id": 10 + number, "name": name} for number, name in enumerate(CATEGORIES)]
    instances = [
        {"id": image, "image_id": image, "category_id": 10 + CATEGORIES.index(name), "bbox": [0, 0, 1, 1]}
        for image, (names, _) in images.items()
        for name in names
    ]
    captions = [{"image_id": image, "caption": text} for image, (_, texts) in images.items() for text in texts]
    content = {"images": listed, "categories": categories, "annotations": instances}
    save(folder / f"instances_{split}{year}.json", content)
    save(folder / f"captions_{split}{year}.json", {"images": listed, "annotations": captions})
    return folder
