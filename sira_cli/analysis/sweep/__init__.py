"""K and alpha over a benchmark: the paper's Figure 3.

| file | job |
|---|---|
| `forks.py` | one prefill: the full stream once, the CF streams of every K beside it |
| `benchmark.py` | yes/no questions: POPE's files, or the bundled validation scenes |
| `cells.py` | the values of K and alpha |
| `grid.py` | every answer of the grid |
| `units.py` | what is finished, in a file that a killed run goes on with |
| `report.py` | figures with intervals, and the record |
| `best.py` | which setting is the best: rules that were fixed beforehand |
| `plot.py` | the figure |
"""
