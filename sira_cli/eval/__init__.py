"""The benchmarks of the paper, run and scored as their official scripts do: POPE, CHAIR, AMBER."""
