"""The one place where figures are made: POPE's and CHAIR's, their intervals, their differences, paired tests.

tally        counts by picture
pope, chair  counts of an answer or a caption, and the figures of their sums
bootstrap    resampled pictures and intervals
wilson       the interval of a share of 0 or 100 %, where all resampled pictures agree
compared     figures of several methods over the same pictures, with differences
mcnemar      a paired test
auroc        how well a score separates true words from wrong ones
"""
