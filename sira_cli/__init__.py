"""SIRA decoding for Hugging Face vision-language models: fewer hallucinations, no training, one pass."""
