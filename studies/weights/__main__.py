"""The weight space of the demo world: `python run.py study weights [STEP ...] [--quick]`.

Steps, in order: train (LoRAs of a population, a cohort at a time), release (the space of these LoRAs), learned (the
space that the pack ships, trained as a whole), learned_measure (the two side by side), measure, guidance, matched,
invert (the node W2W Invert), fits and ceiling (what limits a collected space), names (every layer of LoRAs of ten
networks beside Load LoRA, on the ComfyUI that COMFYUI_DIR names), random_labels (how often a label without meaning
counts as a direction), folder (any folder of LoRAs that --loras names: norms, likeness, sizes), sdxl (the way from
twenty LoRAs of SDXL's shapes to a file, with time and memory).
Without a step all run; `--quick` measures the shipped space with fewer samples. Finished parts are kept in
.cache/weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..common import host

FOLDER = host.ROOT / ".cache" / "weights"
NAMES = (
    "train",
    "release",
    "learned",
    "learned_measure",
    "measure",
    "guidance",
    "matched",
    "invert",
    "fits",
    "ceiling",
    "names",
    "random_labels",
    "folder",
    "sdxl",
)


def main(argv: Sequence[str]) -> int:
    """Run the named steps."""
    parser = argparse.ArgumentParser(prog="run.py study weights", description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(NAMES))
    parser.add_argument("--people", type=int, default=512, help="how many identities to train")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no further cohort after so long")
    parser.add_argument("--loras", type=Path, help="for the step folder: a folder of LoRAs of one base model")
    parser.add_argument("--quick", action="store_true", help="measure with fewer samples, in under five minutes")
    options = parser.parse_args(argv)
    unknown = [step for step in options.steps if step not in NAMES]
    if unknown:
        parser.error(f"there is no step {unknown[0]}: choose from {', '.join(NAMES)}")
    for step in options.steps or (("measure",) if options.quick else NAMES):
        if step == "measure":
            from . import measure

            print(measure.run(options.quick))
        elif step == "guidance":
            from . import guidance

            print(guidance.run(options.quick))
        elif step == "matched":
            from . import matched

            print(matched.run(options.quick))
        elif step == "fits":
            from . import fits

            print(fits.run(options.quick))
        elif step == "invert":
            from . import node_inversion

            print(node_inversion.run(options.quick))
        elif step == "ceiling":
            from . import ceiling

            print(ceiling.run(options.quick))
        elif step == "names":
            from . import lora_names

            print(lora_names.run(options.quick))
        elif step == "random_labels":
            from . import random_labels

            print(random_labels.run(options.quick))
        elif step == "folder" and options.loras:
            from . import lora_folder

            print(lora_folder.run(options.loras))
        elif step == "folder":
            print("Step folder is left out: name one by --loras.")
        elif step == "sdxl":
            from . import sdxl_journey

            print(sdxl_journey.run(FOLDER / "sdxl"))
        elif step == "learned":
            _learned(options.people)
        elif step == "learned_measure":
            from . import learned_measure

            print(learned_measure.run(options.quick))
        else:
            _population(options.people, options.minutes * 60, step == "release")
    return 0


def _learned(count: int) -> None:
    """Train the space that the pack ships, or go on training, and write it."""
    from ..world.generate import Generator
    from ..world.release import WORLD
    from . import learned
    from .people import people

    folder, group = FOLDER / "learned", people(count)
    updates, seconds = learned.train(Generator.load(WORLD), group, folder)
    print(f"{seconds:.0f} s")
    learned.write(updates, group)


def _population(count: int, seconds: float, release_it: bool) -> None:
    """Train, or go on training; and make the space of what there is."""
    from ..world.generate import Generator
    from ..world.release import WORLD
    from . import population, release

    generator, plan = Generator.load(WORLD), population.Plan()
    limit = 0.0 if release_it else seconds
    group, flats = population.train(generator, count, FOLDER, plan, limit)
    if release_it:
        layout = population.Trainer(generator, plan).layout
        release.write(release.build(group, flats, layout, release.COMPONENTS, FOLDER), plan, group)
