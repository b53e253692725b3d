"""Result files: what was measured, with which command, on which asset, and how sure it is."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from . import freshness, host

RESULTS = host.ROOT / "studies" / "results"
FEWEST = 5  # independent units that an interval is given for
KEPT = host.ROOT / ".cache" / "studies"
_CARRIED = "; carried over from an earlier measurement"


def number(value: float, n: int, unit: str, what: str, interval: Sequence[float] = ()) -> dict:
    """An entry of a result file; ``interval`` (low, high) is left out below five units, and where
    it has no width.
    """
    found = {"value": value if isinstance(value, int) else float(value)}
    if len(interval) and n >= FEWEST and interval[0] < interval[1]:
        found |= {"low": float(interval[0]), "high": float(interval[1])}
    return found | {"n": n, "unit": unit, "what": what}


def fraction(hits: np.ndarray, what: str) -> dict:
    """A fraction of successes with its 95 % Wilson interval."""
    count, value, z = len(hits), float(np.mean(hits)), 1.96
    middle = (value + z * z / (2 * count)) / (1 + z * z / count)
    half = (
        z
        * math.sqrt(value * (1 - value) / count + z * z / (4 * count * count))
        / (1 + z * z / count)
    )
    low, high = max(middle - half, 0.0), min(middle + half, 1.0)
    # Rounding leaves -1e-18 where no one succeeded, and .999... where all did.
    return number(value, count, "fraction", what, (min(low, value), max(high, value)))


def bootstrap(
    values: np.ndarray, what: str, unit: str, statistic=np.mean, draws: int = 2000, seed: int = 0
) -> dict:
    """A statistic of the rows of ``values`` with its 95 % bootstrap interval."""
    rng, values = np.random.default_rng(seed), np.asarray(values)
    spread = [statistic(values[rng.integers(len(values), size=len(values))]) for _ in range(draws)]
    return number(
        float(statistic(values)), len(values), unit, what, np.percentile(spread, [2.5, 97.5])
    )


def carried(name: str, words: str) -> dict[str, dict]:
    """Entries of the committed result ``name`` whose names contain ``words``, each with a remark:
    for what is not on this machine and has not changed since it was measured. Paired
    differences are left out.
    """
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text("utf-8"))["numbers"] if path.is_file() else {}
    return {
        entry: number | {"what": f"{number['what'].removesuffix(_CARRIED)}{_CARRIED}"}
        for entry, number in before.items()
        if words in entry and " less " not in entry
    }


class Rows:
    """The rows of a long study, each on the disk as it is done: a run with the same settings goes
    on from there.
    """

    def __init__(self, name: str, settings: dict):
        self._path, self._settings = KEPT / f"{name}_rows.json", json.loads(json.dumps(settings))
        kept = json.loads(self._path.read_text("utf-8")) if self._path.is_file() else {}
        self._rows = kept["rows"] if kept.get("settings") == self._settings else {}

    def __contains__(self, unit: str) -> bool:
        return unit in self._rows

    def row(self, unit: str, make: Callable[[], dict]) -> dict:
        """The row of a unit, from the disk or made now."""
        if unit not in self._rows:
            self._rows[unit] = make()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(".tmp")
            temporary.write_text(
                json.dumps({"settings": self._settings, "rows": self._rows}, indent=1), "utf-8"
            )
            temporary.replace(self._path)
        return self._rows[unit]

    def finished(self) -> None:
        """Delete the file, so that the next run measures again."""
        self._path.unlink(missing_ok=True)


def assets_hash(asset: Path) -> str:
    """SHA-256 of an asset: of a file, or of the names and contents of a folder's weights, else
    sources, else files.
    """
    if asset.is_file():
        return hashlib.sha256(asset.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    files = (
        sorted(asset.glob("*.safetensors"))
        or sorted(asset.rglob("*.py"))
        or sorted(asset.rglob("*.*"))
    )
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def write(
    name: str,
    command: str,
    seed: int,
    assets: Path | Sequence[Path],
    numbers: dict[str, dict],
    sources: dict | None = None,
) -> Path:
    """Write ``studies/results/<name>.json`` under a temporary name and rename it.

    ``assets``: what was measured, files or folders; their hashes are kept, and that of the study's
    code. ``sources``: what else was measured, such as files by their hashes.
    """
    import torch

    if isinstance(assets, Path):
        assets = (assets,)

    RESULTS.mkdir(parents=True, exist_ok=True)
    machine = {
        "processor": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    content = {
        "command": command,
        "seed": seed,
        "versions": versions,
        "machine": machine,
        "assets": {asset.name: assets_hash(asset) for asset in assets},
        "code": freshness.code_of(command),
        **({} if sources is None else {"sources": sources}),
        "numbers": numbers,
    }
    path = RESULTS / f"{name}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path
