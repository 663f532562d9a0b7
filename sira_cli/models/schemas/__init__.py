"""Texts that follow a JSON schema, token by token (extra `json`).

schema          a schema and the value of a text (`Schema`)
trying          test of a schema: a short text is begun
following       tokens that keep a text within its schema
"""
