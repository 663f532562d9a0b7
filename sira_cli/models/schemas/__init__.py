"""Texts that follow a JSON schema, token by token (extra `json`).

schema          a schema and the value of a text (`Schema`)
boxes           boxes in the forms of models and records
trial           test of a schema, in a separate process
lists           room for the entries of lists, before the limit of tokens
following       tokens that keep a text within its schema
"""
