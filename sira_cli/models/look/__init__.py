"""The second look at texts: does the picture support the objects they name; texts decoded after it.

verify          settings of the second look (`Verify`), and their checks
claims          the objects that a text names, with their support (`Claim`, `Check`)
finding         the objects of a text, and the question about each (`ObjectFinder`)
answer_words    yes and no, as tokens
second_look     the questions about each object of a text, and their answers
guiding         texts decoded after a look at what they may name
guide           what a guided text may name
continuing      guided texts, decoded from the middle
forbidding      tokens that may not come next
entries         the objects in the values of JSON texts
sentences       the sentences of a text
"""
