"""Five figures, each a claim with its rivals: `python run.py study figures [FIGURE ...]`.

known (planted neurons are found), person (somebody from one image), word (a word changed in an
image), layout (a layout carried by noise), digits (assigned noise in training). Images are sampled
again, from the first seeds, names and faces of the study; the bars are the committed results.
Written to docs/images/figures.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

FIGURES = ("known", "person", "word", "layout", "digits")


def main(argv: Sequence[str]) -> int:
    """Draw the named figures, or all."""
    from . import sheet

    parser = argparse.ArgumentParser(
        prog="run.py study figures", description=__doc__.splitlines()[0]
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(FIGURES))
    options = parser.parse_args(argv)
    unknown = [name for name in options.figures if name not in FIGURES]
    if unknown:
        parser.error(f"there is no figure {unknown[0]}: choose from {', '.join(FIGURES)}")
    for name in options.figures or FIGURES:
        figure = importlib.import_module(f".{name}", __package__)
        print(sheet.save(figure.make(), name, figure.BARS), flush=True)
    return 0
