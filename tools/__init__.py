"""Tools of the project: the bundled model, its card, the generated parts of the documents. Not in the wheel."""
