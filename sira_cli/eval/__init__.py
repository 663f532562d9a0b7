"""Benchmarks, run and scored as their official scripts do.

base                    the interface of a benchmark: parts, asks, counts, figures
card, catalog           all benchmarks: titles, files, sizes, licences, readers
pope, chair/, amber/    those of the paper: files, rules, ground truth
yes_no                  closed questions; dash_b, naturalbench, mme, hallusion and phd are lists of them
judged                  open questions that a judge elsewhere reads: mmhal, haloquest
repope                  other labels for POPE's questions
language/               words of captions, with NLTK's data or without
stats/                  the one place where POPE's and CHAIR's figures, intervals and paired tests are made
evaluation, asking      let a loaded model answer, resumable
answers/, rows          answers from files, of sira or from elsewhere
lmms/                   the model that lmms-eval finds by entry point
found, overview         all benchmarks in a folder, on one page
report, formats, paper  figures side by side, as JSON, CSV and LaTeX, and the paper's own
"""
