"""A page to look through captions, compare and correct them; `app` serves it, the rest works without a server.

from sira_cli.view import Collection, Edits, export

captions = Collection.read("captions.jsonl")
edits = Edits(captions.edits_file)
edits.change(captions.items[0], seen=edits.state(captions.items[0]).version, text="A cat on a sofa.")
export(captions, edits, "mended.jsonl")
"""

from sira_cli.view.collection import Collection
from sira_cli.view.compared import OtherCaptions
from sira_cli.view.edits import Edits, StaleEditError
from sira_cli.view.export import export
from sira_cli.view.history import State
from sira_cli.view.items import CaptionItem

__all__ = ["CaptionItem", "Collection", "Edits", "OtherCaptions", "StaleEditError", "State", "export"]
