"""K and alpha over yes/no questions: the paper's Figure 3.

questions    the values of K and alpha, and the questions: from POPE's files, or any other `QuestionSet`
run          every answer of the grid, with one prefill per question (`core.passes`)
report       figures with intervals, the best setting by rules that were fixed beforehand, the table and the figure
"""
