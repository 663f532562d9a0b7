"""All benchmarks of `sira eval`: their commands, `--list` and the table of the documents are made from this."""

from __future__ import annotations

from sira_cli.eval import dash_b, hallusion, haloquest, mme, mmhal, naturalbench, phd, repope
from sira_cli.eval.card import Card

LENGTHS = (64, 512)  # of CHAIR's captions in tokens, as in the paper's Table 2
COCO_PICTURES = "COCO val2014 (6 GB)"

POPE = Card(
    name="pope",
    title="Yes/no questions about objects",
    source="Li et al. 2023",
    figures="accuracy, F1, precision, recall, FPR, yes-rate",
    files=("coco_pope_random.json", "coco_pope_popular.json", "coco_pope_adversarial.json"),
    size=f"0.3 MB per file; {COCO_PICTURES}",
    licence="MIT",
    url="https://github.com/RUCAIBox/POPE (folder output/coco)",
    answers='{"question", "answer"} in order, or {"question_id", "text"}',
)
CHAIR = Card(
    name="chair",
    title="Objects in captions that are not in the pictures",
    source="Rohrbach et al. 2018",
    figures="CHAIRs, CHAIRi, recall, length",
    files=("instances_val2014.json", "captions_val2014.json"),
    size=f"0.2 GB of annotations; {COCO_PICTURES}",
    licence="CC BY 4.0",
    url="https://cocodataset.org (2014 Train/Val annotations)",
    answers='{"image_id", "caption"}',
)
AMBER = Card(
    name="amber",
    title="Captions and yes/no questions about 1,004 pictures",
    source="Wang et al. 2023",
    figures="CHAIR, Cover, Hal, Cog; accuracy, precision, recall, F1",
    files=("annotations.json", "relation.json", "safe_words.txt", "query"),
    size="7 MB of files; 1,004 pictures",
    licence="Apache-2.0",
    url="https://github.com/junyangwang0410/AMBER",
    answers='{"id", "response"}',
    main=("generative", "discriminative", "existence", "attribute", "relation"),
)
CARDS = {
    card.name: card
    for card in (
        *(POPE, repope.CARD, CHAIR, AMBER, dash_b.CARD, naturalbench.CARD, hallusion.CARD, phd.CARD, mme.CARD),
        *(mmhal.CARD, haloquest.CARD),
    )
}
