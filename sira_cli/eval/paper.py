"""placeholder until the export branch is merged"""


def pope_group(stem: str) -> str:
    """x."""
    return stem.replace("_pope_", " ")
