"""All statistics: the figures of POPE and CHAIR, intervals, differences, paired tests.

tally        counts by picture
pope, chair  counts of an answer or a caption, and the figures of their sums
influence    how much each picture moves a figure
intervals    intervals of shares (Wilson, with an effective number of answers) and of paired differences
wilson       the interval of a share of independent answers
compared     figures of several methods over the same pictures, with differences
mcnemar      a paired test
auroc        how well a score separates true words from wrong ones
"""
