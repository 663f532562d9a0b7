"""Making calibrations: what `ict` and its like have to know about a model, from pictures."""
