"""The second look at texts: does the picture support what they name, and how they are decoded again without the rest.

verify          whether and how to look (`Verify`), and what that goes with
second_look     the questions about each thing that a text names, and their answers
verifying       answers of a model with what their texts name (`VerifiedAnswers`)
rewriting       texts decoded again without what is not supported
continuing      decoding from the middle of a text on
forbidding      words that may not come again, as tokens
sentences       texts without the sentences that name something
"""
