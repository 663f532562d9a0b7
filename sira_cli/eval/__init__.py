"""Benchmarks, run and scored as their official scripts do.

base                    the interface of a benchmark: parts, asks, counts, figures
cards                   the three benchmarks: titles, files, sizes, licences, options, readers
pope, chair/, amber/    files, rules, ground truth
repope                  other labels for POPE's questions
statistics              intervals over pictures, paired differences and tests
figures                 the counts and figures of POPE and CHAIR
evaluation, asking      let a loaded model answer, resumable
answers/                answers from files: sira's records, the official scripts' rows, lmms-eval's samples
lmms/                   the model that lmms-eval finds by entry point
report, paper           tables of figures as JSON, with the paper's own
"""
