"""Pictures: their sources, opening them safely, perturbing them on purpose."""
