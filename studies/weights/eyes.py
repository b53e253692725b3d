"""Eyes of members: whether captions that name them in the training of the learned space matter, and
what identity guidance does to them.

`python run.py study weights eyes` writes ``studies/results/weights_eyes.json``: the space that
ships, the one before, whose captions named clothing, mouth and background only (read from the
repository's history), and the base model, on the same members, unseen scenes, prompts and noise.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from ..common import host, results
from ..common.similarity import frechet
from ..world import dataset, judge
from ..world.faces import ATTRIBUTES
from ..world.release import ASSETS
from ..world.scenes import render
from .guidance import WAYS
from .learned_measure import BOTH, GUIDED
from .release import ASSET
from .setup import NOISE, factors, fractions, load, prompts, truth

#: The last commit with the space whose captions do not name eyes.
BEFORE = "880ad86b"
#: What W2W Guidance did after its end before: no negative side.
ALONE = "positive side to 60 %, then alone"
_EYES = list(dataset.LABELS).index("eyes")


def space_before() -> Path:
    """The file of the space before, from the repository's history; kept in .cache.

    Raises subprocess.CalledProcessError where the clone has no history.
    """
    path = host.ROOT / ".cache" / "weights" / "before" / ASSET.name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        name = f"{BEFORE}:{ASSET.relative_to(host.ROOT).as_posix()}"
        git = ["git", "-C", str(host.ROOT), "show", name]
        path.write_bytes(subprocess.run(git, check=True, capture_output=True).stdout)
    return path


def measure(count: int) -> dict[str, dict]:
    """Eyes as requested, identity, and the distance to renders, by space and by guidance."""
    arms = {
        f"{name}, {way}": (path, way)
        for way in (GUIDED, BOTH)
        for name, path in (("eyes in captions", ASSET), ("no eyes in captions", space_before()))
    }
    arms["eyes in captions, " + ALONE] = (ASSET, ALONE)
    rows = {name: _row(path, way, count) for name, (path, way) in arms.items()}
    rows["base model"] = _row(space_before(), BOTH, count, base=True)
    numbers: dict[str, dict] = {}
    for name, row in rows.items():
        numbers[f"{name}: eyes as requested"] = results.fraction(
            np.array(row["eyes"]),
            "members without sunglasses whose eyes are recognized as the prompt requests",
        )
        numbers[f"{name}: identity"] = results.bootstrap(
            np.array(row["identity"]),
            "fraction of the identity's attributes recognized",
            "fraction",
        )
        numbers[f"{name}: distance to renders"] = results.number(
            row["distance"],
            count,
            "Frechet",
            "judge's features of images, and of renders of their scenes",
        )
    alone, guided = rows["eyes in captions, " + ALONE], rows[f"eyes in captions, {GUIDED}"]
    for what, label in (("eyes", "eyes as requested"), ("identity", "identity")):
        numbers[f"then both sides less then alone: {label}"] = results.bootstrap(
            np.array(guided[what], float) - np.array(alone[what], float),
            "paired difference on the same members",
            "fraction",
        )
    for way in (GUIDED, BOTH):
        named, before = rows[f"eyes in captions, {way}"], rows[f"no eyes in captions, {way}"]
        for what, label in (("eyes", "eyes as requested"), ("identity", "identity")):
            numbers[f"named less not named, {way}: {label}"] = results.bootstrap(
                np.array(named[what], float) - np.array(before[what], float),
                "paired difference on the same members",
                "fraction",
            )
    return numbers


def _row(path: Path, way: str, count: int, *, base: bool = False) -> dict:
    """What is read of ``count`` members of a space, or of the base model in their place; kept on
    the disk.
    """
    settings = {"space": results.assets_hash(path), "way": WAYS[way], "count": count}
    name = f"weights_eyes_{settings['space'][:8]}_{way.replace(' ', '_')}_{count}"
    kept = results.Rows(name, settings)
    return kept.row("base model" if base else "members", lambda: _read(path, way, count, base=base))


def _read(path: Path, way: str, count: int, *, base: bool) -> dict:
    study = load(count, path)
    group = study.members()
    flats = study.base(count) if base else factors(study.points(group))
    seen, images = study.read(flats, prompts(group), **WAYS[way])
    labels, features = judge.read(study.network, images)
    requested = np.array([ATTRIBUTES["eyes"].index(one.further[0].face.eyes) for one in group])
    bare = np.array([one.face.accessory != "sunglasses" for one in group])
    renders = judge.read(study.network, np.stack([render(one.further[0]) for one in group]))[1]
    return {
        "eyes": (labels[:, _EYES] == requested)[bare].tolist(),
        "identity": fractions(seen, truth(group)).tolist(),
        "distance": float(frechet(features, renders)),
    }


def run(quick: bool = False) -> Path:
    """Measure on a hundred members; ``quick`` on six."""
    numbers = measure(6 if quick else 100)
    command = "python run.py study weights eyes" + " --quick" * quick
    return results.write(
        "weights_eyes" + "_quick" * quick, command, NOISE, (ASSETS, ASSET), numbers
    )
