"""The paper: the fork of one model into two streams, and what it needs of torch and transformers."""
