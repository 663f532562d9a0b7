"""The paper: the fork of one model into two streams, on top of torch and transformers."""
