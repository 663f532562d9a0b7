"""The second look at texts: does the picture support the objects they name; texts decoded again without the others.

verify          settings of the second look (`Verify`), and their checks
claims          what a text claims, with its support (`Claim`, `Check`)
finding         the claims of a text (`ClaimFinder`)
kinds           the kinds of claims: how a text makes them, the questions, the answers
answer_words    the words of answers, as tokens
second_look     the questions about each claim of a text, and their answers
rewriting       texts decoded again without unsupported objects
continuing      decoding from the middle of a text
forbidding      words that may not come again, as tokens
entries         JSON texts, entry by entry
sentences       texts without the sentences that name something
"""
