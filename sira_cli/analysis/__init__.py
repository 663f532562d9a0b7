"""Looking into decoding: traces and their page, drift, sweeps, costs."""
