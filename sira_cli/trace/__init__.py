"""Traces: what decoding saw at each token. The format is `trace.schema.json`."""
