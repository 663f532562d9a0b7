"""The benchmarks of the paper, run and scored as their official scripts do: POPE, CHAIR, AMBER.

base                    the interface of a benchmark: parts, asks, counts, figures
pope, chair/, amber/    the three: files, rules, ground truth
language/               words of captions, with NLTK's data or without
stats/                  the one place where POPE's and CHAIR's figures, intervals and paired tests are made
evaluation, asking      let a loaded model answer, resumable
answers/, rows          answers from files, of sira or from elsewhere
report, formats, paper  figures side by side, as JSON, CSV and LaTeX, and the paper's own
"""
