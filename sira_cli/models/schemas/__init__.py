"""Texts that follow a JSON schema, token by token (extra `json`).

schema          a schema and the value of a text (`Schema`)
boxes           boxes as models write them, and as records have them
trial           whether a schema can be followed, in a process of its own
lists           room for the entries of lists, before the limit of tokens
following       the tokens by which a text stays a beginning of such a value
"""
