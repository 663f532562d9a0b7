"""Benchmarks, run and scored as their official scripts do.

benchmark               the interface of a benchmark, and of its card
cards                   the three benchmarks: titles, files, sizes, licences, options
pope, chair, amber      questions, ground truth, rules; RePOPE's labels are in `pope`
similarity              whether two words of AMBER's captions name the same thing
statistics, figures     intervals over pictures, paired differences and tests; the figures of POPE and CHAIR
evaluation              let a loaded model answer, resumable
suite                   several benchmarks asked of one model, as `sira eval` does
answers                 answers from files: sira's records, the official scripts' rows, lmms-eval's samples
published               what greedy decoding should give: ranges of published figures
report                  figures side by side as JSON and tables, with the paper's own
combined                the main figures of several benchmarks in one table, also as CSV and LaTeX
lmms, lmms_model        the model that lmms-eval finds by entry point
"""
