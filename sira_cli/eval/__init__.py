"""The benchmarks of the paper, run and scored as their official scripts do: POPE, CHAIR, AMBER.

base                              what a benchmark is: parts, asks, counts, figures
pope, chair*, coco, amber*        the three: files, rules, ground truth
language, fallback, similarity    words of captions, with NLTK's and spaCy's data or without
run, answers, names, rows         where texts come from: a model, or files
report, paired, formats, paper    figures side by side, tests, CSV and LaTeX, the paper's own
"""
