"""How far counterfactual streams stray from the full one: the paper's Figure 4."""
