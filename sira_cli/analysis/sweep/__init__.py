"""K and alpha over yes/no questions: the paper's Figure 3.

run          a sweep from Python, which yields events
questions    the questions, from POPE's files or elsewhere
cells        the values of K and alpha
grid         every answer of the grid, with one prefill per question (`core.many_k`)
units        finished units, in a file from which a killed run continues
outcome      figures with intervals, and the record
best         which setting is the best, by rules that were fixed beforehand
plot         the figure
"""
