"""The second look at texts: does the picture support the objects they name; texts decoded again without the others.

verify          settings of the second look (`Verify`), and their checks
claims          objects with their support (`Claim`, `Check`), and the question about one
second_look     the questions about each object that a text names, and their answers
verifying       a model's answers with the objects of their texts (`VerifiedAnswers`)
rewriting       texts decoded again without unsupported objects
continuing      decoding from the middle of a text
forbidding      words that may not come again, as tokens
entries         JSON texts, entry by entry
sentences       texts without the sentences that name something
"""
