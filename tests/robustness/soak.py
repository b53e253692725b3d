"""`run.py fuzz --soak N`: the demo workflows at tiny settings, round after round on one server;
what stays behind.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.launcher import comfyui, paths, workflow
from tools.launcher.api import Client, PromptError, output_files
from tools.launcher.errors import LaunchError
from tools.launcher.server import Server
from tools.launcher.widgets import inputs

_FOLDER = paths.CACHE / "soak"
# Inputs that decide how long a run takes, and the most that a tiny run takes of them.
_TINY = {
    r"^(width|height|resolution|tile)$": 64,
    r"steps$|_seeds$|^candidates$|^rounds$|^draws$|^batches$": 2,
    r"^count$": 8,  # some are held out or trained on, and some must be left
    r"^batch_size$": 16,  # the fewest images that Discover Sliders takes
}
_SEED = re.compile(r"^(noise_)?seed$")
_DURATION = re.compile(
    r"\d+(\.\d+)? (m?s\b|% of the time)"
)  # in a report, no two of which take the same time
_QUICK = 0.6  # of the workflows run in every round; all of them in the first and the last
_WARM_UP = 100  # prompts before memory is compared


@dataclass
class Traces:
    """What was measured after each round, and the hash of what each workflow made in its first
    round.
    """

    memory: list[tuple[int, float]] = field(default_factory=list)  # prompts so far, resident MB
    threads: list[int] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # of each workflow's first run
    first: dict[str, str] = field(default_factory=dict)
    compared: int = 0
    different: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    prompts: int = 0


def run(comfyui_folder: Path, prompts: int, minutes: float) -> dict[str, dict]:
    """Queue up to so many prompts for at most so many minutes; the numbers for the result file."""
    from tqdm import tqdm  # here, because the launcher is imported before its environment exists

    base = comfyui.prepare_base(_FOLDER)
    _remove_made(base)
    traces, deadline = Traces(), time.monotonic() + 60 * minutes
    with Server(comfyui_folder, base) as server, tqdm(total=prompts, unit="prompt") as bar:
        client = Client(server.url)
        workflows = tiny_workflows(client.object_info())
        run_round(client, workflows, 0, traces, bar)
        quick = sorted(workflows, key=traces.seconds.__getitem__)[: round(_QUICK * len(workflows))]
        number = 0
        while (
            traces.prompts + len(quick) + len(workflows) <= prompts and time.monotonic() < deadline
        ):
            number += 1
            run_round(client, {name: workflows[name] for name in quick}, number, traces, bar)
            _measure(server.process_id, traces)
        _remove_made(base)
        run_round(client, workflows, 0, traces, bar)
        remaining = list(_temporary(base))
    with (
        Server(comfyui_folder, base, ("--cache-none",)) as server,
        tqdm(total=len(workflows), unit="prompt") as bar,
    ):
        # After a restart, in the opposite order, and without any cache between nodes.
        _remove_made(base)
        run_round(Client(server.url), dict(reversed(workflows.items())), 0, traces, bar)
    for line in (*traces.failed, *traces.different):
        print(line)
    return _numbers(traces, len(workflows), len(quick), len(remaining))


def tiny_workflows(object_info: dict) -> dict[str, dict]:
    """The prompts of the demo workflows by name, as small as their inputs allow."""
    demos = workflow.own(workflow.Kind.DEMO)
    prompts = {
        name: workflow.to_prompt(workflow.load(path), object_info) for name, path in demos.items()
    }
    return {name: reduced(prompt, object_info) for name, prompt in prompts.items()}


def reduced(prompt: dict, object_info: dict) -> dict:
    """A prompt whose nodes have inputs as small as they allow."""
    return {
        node: entry | {"inputs": shrink(entry["inputs"], object_info[entry["class_type"]])}
        for node, entry in prompt.items()
    }


def shrink(values: dict, info: dict) -> dict:
    """The inputs of a node, those that decide how long it takes as small as its description
    allows.
    """
    small = dict(values)
    for one in inputs(info):
        value = values.get(one.name)
        most = next((most for pattern, most in _TINY.items() if re.search(pattern, one.name)), None)
        if one.kind == "INT" and isinstance(value, int) and most is not None:
            small[one.name] = max(min(value, most), one.options.get("min", 0))
        if one.name == "layers" and isinstance(
            value, str
        ):  # the neurons of one layer are searched in a second
            small[one.name] = "middle"
    return small


def run_round(client: Client, workflows: dict[str, dict], number: int, traces: Traces, bar) -> None:
    """Each workflow once, with seeds of the round; those of round 0 are compared with their first
    results.
    """
    for name, prompt in workflows.items():
        seeded = json.loads(json.dumps(prompt))
        for entry in seeded.values():
            for key, value in entry["inputs"].items():
                if _SEED.match(key) and isinstance(value, int):
                    entry["inputs"][key] = value + number
        traces.prompts += 1
        bar.update()
        start = time.monotonic()
        try:
            prompt_id = client.queue(seeded)
            entry = client.wait(prompt_id)
        except PromptError as error:
            traces.failed.append(f"{name}: {error}")
            continue
        finally:
            traces.seconds.setdefault(name, time.monotonic() - start)
        if number == 0:
            made = _digest(client, entry)
            if traces.first.setdefault(name, made) is not made:
                traces.compared += 1
                if traces.first[name] != made:
                    traces.different.append(f"{name}: another result than in its first run")
        client.forget(prompt_id)  # else ComfyUI's history grows


def _digest(client: Client, entry: dict) -> str:
    """A hash of the pixels and texts that a prompt has made."""
    from PIL import Image, ImageSequence

    digest = hashlib.sha256()
    for file in output_files(entry):
        content = client.download(file)
        if file.filename.endswith(
            (".png", ".webp")
        ):  # their metadata differ with what ComfyUI ran before
            for frame in ImageSequence.Iterator(Image.open(io.BytesIO(content))):
                digest.update(frame.tobytes())
        else:
            digest.update(content)
    for _, outputs in sorted(entry["outputs"].items()):
        if (
            "text" in outputs
        ):  # a panel's values have none, and are left out where its node comes from the cache
            digest.update(_DURATION.sub("", json.dumps(outputs["text"])).encode())
    return digest.hexdigest()


def _measure(process_id: int, traces: Traces) -> None:
    import psutil

    process = psutil.Process(process_id)
    traces.memory.append((traces.prompts, process.memory_info().rss / 2**20))
    traces.threads.append(process.num_threads())
    traces.handles.append(
        process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
    )


def _remove_made(base: Path) -> None:
    """Delete the files that workflows have written: a space or a training would go on from its
    own.
    """
    for folder in ("models", "output"):
        for path in (base / folder).rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.unlink()


def _temporary(base: Path) -> Iterator[Path]:
    """Files that should not outlive a prompt; ComfyUI's previews in temp/ are its own."""
    from . import fuzz

    return (path for pattern in fuzz.LEFTOVERS for path in base.rglob(pattern))


def _numbers(traces: Traces, workflows: int, quick: int, remaining: int) -> dict[str, dict]:
    from scipy import stats

    warm = [(prompts, memory) for prompts, memory in traces.memory if prompts >= _WARM_UP]
    if len(warm) < 5:
        raise LaunchError(f"{traces.prompts} prompts are too few: let it run longer (--minutes).")
    line = stats.linregress(*zip(*warm, strict=True))
    half = stats.t.ppf(0.975, len(warm) - 2) * line.stderr
    what = (
        f"resident memory per prompt, prompts {warm[0][0]} to {warm[-1][0]}, rounds of the {quick} "
        "quickest workflows"
    )
    counts = {
        "prompts": (
            traces.prompts,
            "prompts",
            f"all {workflows} demo workflows at the start, at the end and after a "
            f"restart, and the {quick} quickest in rounds, at tiny settings",
        ),
        "failed": (len(traces.failed), "prompts", "ended in an error"),
        "compared": (
            traces.compared,
            "prompts",
            "identical prompts at the start, at the end, and after a restart without cache, in "
            "the opposite order",
        ),
        "different": (len(traces.different), "prompts", "of these made other pixels or texts"),
        "memory at the end": (round(traces.memory[-1][1]), "MB", "resident memory of the server"),
        "threads gained": (
            traces.threads[-1] - traces.threads[len(traces.threads) - len(warm)],
            "threads",
            "from the first compared round to the last",
        ),
        "file handles gained": (
            traces.handles[-1] - traces.handles[len(traces.handles) - len(warm)],
            "handles",
            "from the first compared round to the last",
        ),
        "temporary files": (remaining, "files", "left behind"),
    }
    slope = {
        "value": line.slope,
        "low": line.slope - half,
        "high": line.slope + half,
        "n": len(warm),
        "unit": "MB",
    }
    return {
        "soak: memory slope": {**slope, "what": what},
        **{
            f"soak: {name}": {"value": value, "n": traces.prompts, "unit": unit, "what": what}
            for name, (value, unit, what) in counts.items()
        },
    }
