"""Texts that follow a JSON schema, token by token (extra `json`).

schema          a schema and the value of a text (`Schema`)
following       the tokens by which a text stays a beginning of such a value
"""
