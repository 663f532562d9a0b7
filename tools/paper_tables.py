"""The results in the paper's LaTeX source, as numbers, without typing.

python -m tools.paper_tables tests/data/paper_tables.tex > sira_cli/eval/paper.yaml
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

MODELS = {"Qwen2.5-VL": "qwen2.5-vl-7b", "LLaVA-v1.5": "llava-1.5-7b"}
METHODS = {
    "Baseline": "greedy",
    "Base": "greedy",
    "DoLa": "dola",
    "OPERA": "opera",
    "VCD": "vcd",
    "ICT": "ict",
    "MaskCD": "maskcd",
    "SID": "sid",
    r"\modelname": "sira",
    r"\modelname (ours)": "sira",
}
DATASETS = {"COCO": "coco", "A-OKVQA": "aokvqa", "GQA": "gqa"}
FIGURES = {
    "Acc": "accuracy",
    "F1": "F1",
    r"Prec.\,\%": "precision",
    r"Recall\,\%": "recall",
    r"FPR\,\%": "FPR",
    r"Yes\,\%": "yes",
}
CAPTIONS = {  # by the columns' heads
    r"$C_S^{64}\downarrow$": ("chair", "64 tokens", "CHAIRs"),
    r"$C_I^{64}\downarrow$": ("chair", "64 tokens", "CHAIRi"),
    r"$C_S^{512}\downarrow$": ("chair", "512 tokens", "CHAIRs"),
    r"$C_I^{512}\downarrow$": ("chair", "512 tokens", "CHAIRi"),
    r"CHAIR$\downarrow$": ("amber", "generative", "CHAIR"),
    r"Cover$\uparrow$": ("amber", "generative", "Cover"),
    r"Hal$\downarrow$": ("amber", "generative", "Hal"),
    r"Cog$\downarrow$": ("amber", "generative", "Cog"),
}
NOTES = {
    "T = 1": "sampled at T = 1: equal in all 18 figures to the row that VCD's paper printed (Regular, or VCD)",
    "Qwen-VL": "figures of Qwen-VL of 2023, not of this model, sampled at T = 1: equal in all 18 to VCD's row for it",
    "F1 a slip?": "F1 is probably a slip: others print 86.62; precision, recall, FPR and yes follow from F1",
    "by its authors": "LLaVA-1.5's F1 in Liu et al. 2023 (arXiv 2310.03744): greedy, asked with another suffix",
}
SPLITS = tuple(f"{dataset} {split}" for dataset in DATASETS.values() for split in ("random", "popular", "adversarial"))
MARKS = {  # rows of POPE that do not compare with greedy decoding of the named model; each has a mark of NOTES
    **{("llava-1.5-7b", split, method): "T = 1" for split in SPLITS for method in ("greedy", "vcd")},
    **{("qwen2.5-vl-7b", split, "vcd"): "Qwen-VL" for split in SPLITS},
    ("llava-1.5-7b", "coco popular", "opera"): "F1 a slip?",
}
# What the models' authors print, where it is decoded greedily.
PUBLISHED = {
    "llava-1.5-7b": {
        "pope": {
            "coco random": {"greedy": {"F1": 87.3}},
            "coco popular": {"greedy": {"F1": 86.1}},
            "coco adversarial": {"greedy": {"F1": 84.2}},
        }
    }
}
HEAD = """\
# The paper's results in percent: POPE's main table with its decomposition, and the table of CHAIR and AMBER.
# `is`: a row that does not compare with greedy decoding of the model, as `notes` explains. `published`: by its authors.
# Made by `python -m tools.paper_tables tests/data/paper_tables.tex > sira_cli/eval/paper.yaml`; not to be edited.
"""

Paper = dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]  # model, benchmark, group, method, figure


def tables(source: str) -> Paper:
    """Return the content of `paper.yaml`: POPE with its decomposition, CHAIR and AMBER."""
    paper: Paper = {}
    for name, model in MODELS.items():
        label = "tab:pope-decomp-" + re.sub("[^a-z0-9]", "", name.lower())
        paper[model] = {"pope": _decomposition(_rows(source, label))}
    for model, found in _captions(_rows(source, "tab:chair-main")).items():
        paper[model] |= found
    return paper


def main_table(source: str) -> dict[tuple[str, str, str, str], float]:
    """Return Table 1, accuracy and F1, by model, group, method and figure."""
    head, names, *rows = _rows(source, "tab:pope_full_llava_qwen25_delta")
    models = [MODELS[cell] for cell in head if cell]
    methods = [METHODS[cell] for cell in names[3:]]
    each = len(methods) // len(models)
    found = {}
    dataset = setting = ""
    for row in rows:
        dataset, setting = row[0] or dataset, row[1] or setting
        for column, (method, cell) in enumerate(zip(methods, row[3:], strict=True)):
            found[models[column // each], _group(dataset, setting), method, FIGURES[row[2]]] = float(cell)
    return found


def _decomposition(rows: list[list[str]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return POPE's figures by group, method and figure."""
    head, *rows = rows
    figures = [FIGURES[cell] for cell in head[3:]]
    found: dict[str, dict[str, dict[str, float]]] = {}
    dataset = setting = ""
    for row in rows:
        dataset, setting = row[0] or dataset, row[1] or setting
        methods = found.setdefault(_group(dataset, setting), {})
        methods[METHODS[row[2]]] = dict(zip(figures, map(float, row[3:]), strict=True))
    return found


def _captions(rows: list[list[str]]) -> Paper:
    """Return the figures of CHAIR and AMBER, by model."""
    _, head, *rows = rows
    columns = [CAPTIONS[cell] for cell in head[2:]]
    paper: Paper = {}
    model = ""
    for row in rows:
        model = MODELS[row[0]] if row[0] else model
        for (benchmark, group, figure), cell in zip(columns, row[2:], strict=True):
            methods = paper.setdefault(model, {}).setdefault(benchmark, {}).setdefault(group, {})
            methods.setdefault(METHODS[row[1]], {})[figure] = float(cell)
    return paper


def _group(dataset: str, setting: str) -> str:
    return f"{DATASETS[dataset]} {setting.lower()}"


def _rows(source: str, label: str) -> list[list[str]]:
    """Return the cells of the table with this label, without formatting."""
    (table,) = (part for part in re.findall(r"\\begin\{table\}.*?\\end\{table\}", source, re.DOTALL) if label in part)
    body = table.split(r"\toprule", 1)[1].split(r"\bottomrule", 1)[0]
    body = re.sub(r"\\midrule|\\cmidrule(\([^)]*\))?\{[^}]*\}", "", body)
    return [[_plain(cell) for cell in row.split("&")] for row in body.split(r"\\") if row.strip()]


def _plain(cell: str) -> str:
    """Return a cell without bold, underline, colour and spans."""
    cell = re.sub(r"\\cellcolor\{[^}]*\}|\\multirow\{\d+\}\{\*\}|\\multicolumn\{\d+\}\{[^}]*\}", "", cell.strip())
    while (bare := re.sub(r"\\(?:textbf|underline)\{([^{}]*)\}", r"\1", cell)) != cell:
        cell = bare
    return cell.removeprefix("{").removesuffix("}").strip()


def to_yaml(paper: Paper) -> str:
    """Return the text of `paper.yaml`, with one line for the figures of each method."""
    models: Any = {
        model: {
            benchmark: {group: _marked(model, group, methods) for group, methods in groups.items()}
            for benchmark, groups in benchmarks.items()
        }
        for model, benchmarks in paper.items()
    }
    figures = yaml.safe_dump(
        {"models": models, "published": PUBLISHED}, sort_keys=False, default_flow_style=None, width=140
    )
    return HEAD + figures + yaml.safe_dump({"notes": NOTES}, sort_keys=False, width=140)


def _marked(model: str, group: str, methods: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return rows, with a mark on those that do not compare."""
    marks = {method: MARKS[model, group, method] for method in methods if (model, group, method) in MARKS}
    return {method: row | ({"is": marks[method]} if method in marks else {}) for method, row in methods.items()}


if __name__ == "__main__":
    print(to_yaml(tables(Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")
