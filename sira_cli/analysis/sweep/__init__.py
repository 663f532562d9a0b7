"""K and alpha over yes/no questions: the paper's Figure 3.

run          a sweep from Python, which yields what happens
questions    what is asked, from POPE's files or elsewhere
cells        the values of K and alpha
grid         every answer of the grid, with one prefill per question (`core.many_k`)
units        what is finished, in a file that a killed run goes on with
outcome      figures with intervals, and the record
best         which setting is the best, by rules that were fixed beforehand
plot         the figure
"""
