"""A checkpoint's own forms of inputs: its processor, sizes of pictures, chat template, tokens."""
