"""Benchmarks, run and scored as their official scripts do.

base                    the interface of a benchmark: parts, asks, counts, figures
card, catalog           all benchmarks: titles, files, sizes, licences, readers
pope, chair/, amber/    those of the paper: files, rules, ground truth
yes_no                  closed questions; dash_b, naturalbench, mme, hallusion and phd are lists of them
judged                  open questions for an external judge: mmhal, haloquest
repope                  other labels for POPE's questions
language/               words of captions, with NLTK's data or without
stats/                  the figures of POPE and CHAIR, intervals and paired tests
evaluation, asking      let a loaded model answer, resumable
answers/, rows          answers from files, of sira or from elsewhere
lmms/                   the model that lmms-eval finds by entry point
found, overview         all benchmarks in a folder, on one page
report, formats, paper  tables of figures as JSON, CSV and LaTeX, with the paper's own
"""
