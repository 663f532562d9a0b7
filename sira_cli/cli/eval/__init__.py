"""`sira eval`: benchmarks, run and scored."""
