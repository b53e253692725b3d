"""How long the papers' large jobs would take on 8 and 64 GPUs, computed from measured rows and from
stated rates.
"""

from __future__ import annotations

import json
import math

from studies.common import results

_GPUS = (8, 64)
#: Stated rates: seconds per piece on one V100 or A100, and where they are stated.
_SCAN = 0.21, "Finding NeMo, Table 2: one batch of 10 seeds"
_LOCALIZE = 45.90, "Finding NeMo, Table 2: a template-memorized prompt"
_TRAIN = 220.0, "weights2weights, Tables 2 and 4: 800 steps"
_FRACTION_MEMORIZED = 0.05  # of a list of prompts: an assumption
_START = 20.0  # seconds until a ComfyUI has started on a machine of its own
_PROMPTS, _IDENTITIES, _CHUNK = 10_000, 65_000, 16
_CHECKPOINT, _NETWORK = (
    2.13e9,
    1.25e9,
)  # bytes of SD1.5 in float16; bytes per second of one file server, 10 Gbit/s
_NUMBERS = 99_648  # of one LoRA of the paper


def exact(value: float, unit: str, what: str) -> dict:
    """A number without an interval."""
    return results.number(value, 1, unit, what)


def numbers() -> dict[str, dict]:
    """One entry per claim; needs the results of the part overhead."""
    added = _measured("batch_overhead", "Ray, one worker") / 1000
    driver = _measured("batch_overhead", "Ray, processor of the driver") / 1000
    found = {
        "driver, pieces per second": exact(
            1 / driver, "1/s", "at most, by its processor time per piece"
        ),
    }
    for gpus in _GPUS:
        start = _START + gpus * _CHECKPOINT / _NETWORK
        found[f"{gpus} GPUs, start"] = exact(
            start,
            "s",
            f"20 s for ComfyUI, and {gpus} times 2.13 GB from one file server of 10 Gbit/s",
        )
        jobs = {
            "scan of 10,000 prompts": (math.ceil(_PROMPTS / _CHUNK), _CHUNK * _SCAN[0], _SCAN[1]),
            "localizing 500 of them": (int(_PROMPTS * _FRACTION_MEMORIZED), *_LOCALIZE),
            "training 65,000 identities": (_IDENTITIES, *_TRAIN),
        }
        for name, (pieces, seconds, source) in jobs.items():
            total = start + math.ceil(pieces / gpus) * (seconds + added)
            found[f"{gpus} GPUs, {name}"] = exact(
                total / 3600, "h", f"{pieces:,} pieces of {seconds:.1f} s ({source})"
            )
            found[f"{gpus} GPUs, {name}, driver"] = exact(
                100 * driver * gpus / (seconds + added), "%", "of one core of the driver's machine"
            )
    found["population, bytes"] = exact(
        _IDENTITIES * _NUMBERS * 4 / 1e9, "GB", "65,000 LoRAs of 99,648 float32 numbers"
    )
    found["population, files"] = exact(
        3 * _IDENTITIES, "entries", "a folder, a record and a LoRA per piece"
    )
    found["space, Gram matrix"] = exact(
        _IDENTITIES**2 * 8 / 1e9, "GB", "in memory while the space is built"
    )
    per_member = _measured("bench_weights_many", "5000 members, seconds, this pack") / 5000**2
    found["space, building"] = exact(
        per_member * _IDENTITIES**2 / 3600,
        "CPU h",
        "products alone, from 5,000 members by the square of the members",
    )
    return found


def _measured(result: str, name: str) -> float:
    return json.loads((results.RESULTS / f"{result}.json").read_text("utf-8"))["numbers"][name][
        "value"
    ]
