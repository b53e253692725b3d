"""`run.py fuzz --calls N`: nodes that hook a network, on prompts with areas, couples and tiles,
against a reference.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from tools.launcher import in_process, paths, studies

from .call_reference import DEFECTS, Bench, make_case
from .call_subjects import SUBJECTS

RESULT, PREFIX = "robustness_calls", "calls: "


def run(comfyui_folder: Path, count: int, seed: int) -> int:
    """Try every node on so many prompts, print the defects, and write the numbers; returns 1 if
    there was a defect.
    """
    from tqdm import tqdm

    results = studies.load_module("common.results", "studies")
    bench = Bench(in_process.start(comfyui_folder, Path(tempfile.mkdtemp())))
    counts: dict[str, Counter] = {name: Counter() for name in SUBJECTS}
    for number in tqdm(range(count), unit="prompt"):
        for name, kind, message in bench.try_case(make_case(number, seed), SUBJECTS):
            counts[name][kind] += 1
            if kind in DEFECTS:
                print(f"prompt {number}, {name}: {kind}: {message}")
    numbers = {
        f"{PREFIX}{name}": results.number(
            found["right"],
            count,
            "prompts",
            f"as the reference; {found['sentence']} more end in one sentence",
        )
        for name, found in counts.items()
    }
    for kind, what in {
        "bare": "ended in an error without a sentence",
        "wrong": "ended with another result",
    }.items():
        value = sum(found[kind] for found in counts.values())
        numbers[PREFIX + kind] = results.number(
            value, count * len(SUBJECTS), "uses", f"of a node on a prompt {what}"
        )
    command = f"python run.py fuzz --calls {count} --seed {seed}"
    results.write(RESULT, command, seed, paths.ROOT / "assets" / "avatars-v2", numbers)
    return int(any(found[kind] for found in counts.values() for kind in DEFECTS))
