"""The paper's figures."""


def pope_group(stem: str) -> str:
    """The group of a question file."""
    return stem.replace("_pope_", " ")
