"""One path for every figure: `sira sweep` and `sira eval pope` agree to the last bit where they ask the same."""

from __future__ import annotations

import json

from tests.support.eval.helpers import rows

SPLITS = ("random", "popular", "adversarial")


def test_sweep_and_eval_give_the_same_figures(sira, scenes):
    """Of the same questions: by sweep, and by eval with answers of one token."""
    files = [scenes / "pope" / f"scenes_pope_{split}.json" for split in SPLITS]
    common = ("--images", scenes / "images", "-p", "demo", "--alpha", 8, "-b", 8, "--json")
    code, out, _ = sira("sweep", *files, "--k", 7, *common)
    assert code == 0
    sweep = {(row["k"], row["alpha"]): row for row in json.loads(out)["rows"]}
    options = ("--max-new-tokens", 1, "--k", 7, "--method", "sira")
    code, out, _ = sira("eval", "pope", *files, *options, *common)
    assert code == 0
    found = rows(json.loads(out))
    for cell, method in (((0, 0.0), "greedy"), ((7, 8.0), "sira")):
        for split in SPLITS:
            expected = found[f"scenes {split}", method]["figures"]
            for name in ("accuracy", "F1", "precision", "recall", "FPR", "yes"):
                assert sweep[cell]["figures"][f"scenes {split} {name}"] == expected[name], (cell, split, name)
    for split in SPLITS:
        expected = found[f"scenes {split}", "sira"]["differences"]
        for name in ("accuracy", "F1", "yes"):
            assert sweep[7, 8.0]["differences"][f"scenes {split} {name}"] == expected[name], (split, name)
    assert any(each["value"] for each in sweep[7, 8.0]["differences"].values())  # else equality would prove little
