"""From pictures and prompts to texts: preparing, decoding, reasoning."""
