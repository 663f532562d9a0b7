"""Texts that follow a JSON schema, token by token (extra `json`).

schema          a schema and the value of a text (`Schema`)
trial           test of a schema, in a separate process
following       tokens that keep a text within its schema
"""
