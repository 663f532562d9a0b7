"""The second look at texts: does the picture support the objects they name; texts decoded after it.

words           the objects of a text, by lists or by spaCy
claims          an object with its support (`Claim`, `Check`), and degrees of doubt
verify          settings of the second look (`Verify`), and the question about each object (`ObjectFinder`)
second_look     the questions, and their answers
guiding         captions decoded after a look at what they may name, from the middle of a draft on
guide           what a guided text may name
"""
