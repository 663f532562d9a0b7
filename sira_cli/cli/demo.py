"""`sira demo`."""

from __future__ import annotations

from sira_cli.cli.console import set_verbosity, silence_transformers, waiting
from sira_cli.cli.options import Verbose


def demo(verbose: Verbose = 0) -> None:
    """Caption a bundled photograph with a bundled model: nothing to download."""
    set_verbosity(False, verbose)
    with waiting("loading the bundled model"):
        from sira_cli.demo import PICTURE
        from sira_cli.lvlm import load

        silence_transformers()
        captions = {method: load("demo", method=method).caption(PICTURE) for method in ("greedy", "sira")}
    sira = captions["sira"]
    print(f"picture  {PICTURE}")
    print(f"prompt   {sira.prompt}")
    print(f"fork     layers {sira.layers - sira.k}..{sira.layers - 1} of {sira.layers} run twice (K = {sira.k}),")
    print(f"         the second time without the {sira.image_tokens} image tokens; alpha = {sira.alpha}")
    for method, result in captions.items():
        print(f"{method:<8} {result.text}")
    print()
    print("The bundled model is tiny and has random weights so far: the words are random, the path is the real one.")
    print("With a real model (a download of many gigabytes):")
    print(f"  sira caption {PICTURE} --preset llava-1.5-7b")
