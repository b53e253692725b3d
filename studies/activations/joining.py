"""How several activations are joined decides how well they match: `python run.py study activations
joining [--quick]`.

Correspondence of key points (PCK@0.1 of the face's height) with activations joined as recorded and
each at unit length. Single activations are selected on one set of images, and everything is
reported on other images.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..common import host, results
from . import labeled_faces, measure, scores

SEED, SELECTION_SEED = 20_250, 20_251
#: The demo world's set until it was selected on other images, which held two activations below the
#: same place.
FORMER = (
    "up-level1-repeat0-vit-block0-cross-q",
    "up-level1-repeat0-vit-block0-out",
    "up-level1-repeat2-res-out",
    "up-level2-repeat0-vit-block0-self-k",
)
_PCK = f"PCK@0.1 at t = {measure.RECIPE}, over pairs"


def main(argv: Sequence[str]) -> int:
    """Measure, write, and print where."""
    parser = argparse.ArgumentParser(
        prog="run.py study activations joining", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="16 images instead of 60")
    options = parser.parse_args(argv)
    host.prepare()
    assets = host.pack("nodes.demo.assets")
    world, count = assets.worlds()[0], 16 if options.quick else 60
    tapper = measure.Tapper(world)
    select_ids, weightings = (
        host.pack("nodes.activations.select_ids"),
        host.pack("nodes.activations.activations").Weighting,
    )
    selection, reported = (labeled_faces.drawn(count, seed) for seed in (SELECTION_SEED, SEED))
    tapped = [
        next(iter(tapper.draws(tapper.latent(one), measure.RECIPE, SEED, 1)))
        for one in (selection, reported)
    ]
    single = {
        id_: float(scores.hits(tapped[0].select([id_]).joined(), selection).float().mean())
        for id_ in tapped[0].features
    }
    guess = float(scores.same_place_hits(selection).float().mean())
    best = max(single, key=single.get)
    sets = {
        "recommended": select_ids.recommended(tapper.entries, None),
        "former set": FORMER,
        "legacy set": measure.LEGACY,
        "general filter": select_ids.general_filter(tapper.entries),
        f"best single activation of the selection images ({best})": [best],
    }
    numbers = {
        "same place": results.bootstrap(
            scores.same_place_hits(reported).float().mean(1).numpy(),
            f"without a model, {_PCK}",
            "fraction",
        )
    }
    for name, ids in sets.items():
        for weighting in weightings:
            hits = (
                scores.hits(tapped[1].select(ids).joined(weighting), reported)
                .float()
                .mean(1)
                .numpy()
            )
            what = f"{len(list(ids))} activations joined {weighting}, {_PCK}"
            numbers[f"{name}, {weighting}"] = results.bootstrap(hits, what, "fraction")
    worst = min(single[id_] for id_ in sets["recommended"])
    numbers["recommended: worst single activation minus the same place, selection images"] = (
        results.number(
            worst - guess, count, "fraction", "must be above 0 for a recommended activation"
        )
    )
    for name, number in numbers.items():
        print(f"{name}: {number['value']:.3f}", flush=True)
    name, command = "activations_joining", "python run.py study activations joining"
    if options.quick:
        name, command = f"{name}_quick", f"{command} --quick"
    print(results.write(name, command, SEED, assets.ASSETS / world, numbers))
    return 0
