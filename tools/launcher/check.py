"""`run.py check --checkpoint FILE`: a short run of every family on the user's checkpoint, with a
report.

The report holds no path, so that it can be pasted into an issue.

A family is one function that turns the checkpoint's name into an API prompt; adding it to FAMILIES
is all it takes. Inputs that the prompt leaves out keep their defaults.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import paths, serve
from .api import Client
from .console import table
from .errors import LaunchError
from .server import Server
from .widgets import widgets

_PATHS_FILE, _LINKS = "check_paths.yaml", "check_models"
_WATCH_SECONDS = 0.5  # between two readings of the memory
_KINDS = {".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin"}


def host(checkpoint: str) -> dict:
    """Stock nodes alone: load, encode a text, sample two steps at 256 pixels, decode."""
    sampling = {
        "seed": 1,
        "steps": 2,
        "cfg": 5.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
    }
    return {
        "1": _node("CheckpointLoaderSimple", ckpt_name=checkpoint),
        "2": _node("CLIPTextEncode", clip=["1", 1], text="a portrait"),
        "3": _node("CLIPTextEncode", clip=["1", 1], text=""),
        "4": _node("EmptyLatentImage", width=256, height=256, batch_size=1),
        "5": _node(
            "KSampler",
            model=["1", 0],
            positive=["2", 0],
            negative=["3", 0],
            latent_image=["4", 0],
            **sampling,
        ),
        "6": _node("VAEDecode", samples=["5", 0], vae=["1", 2]),
        "7": _node("PreviewImage", images=["6", 0]),
    }


def noise(checkpoint: str) -> dict:
    """Two images of the host's prompt, resampled with assigned noise, and a LoRA trained on
    them.
    """
    prompt = host(checkpoint)
    prompt["4"]["inputs"]["batch_size"] = 2
    training = {"positive": ["2", 0], "steps": 2, "rank": 2, "pairing": "pool", "pool_size": 8}
    return prompt | {
        "10": _node("RandomNoise", noise_seed=1),
        "11": _node("GBX_ImmiscibleNoise", noise=["10", 0], latent=["5", 0], model=["1", 0]),
        "12": _node("BasicGuider", model=["1", 0], conditioning=["2", 0]),
        "13": _node("KSamplerSelect", sampler_name="euler"),
        "14": _node("BasicScheduler", model=["1", 0], scheduler="normal", steps=2, denoise=0.5),
        "15": _node(
            "SamplerCustomAdvanced",
            noise=["11", 0],
            guider=["12", 0],
            sampler=["13", 0],
            sigmas=["14", 0],
            latent_image=["5", 0],
        ),
        "16": _node("VAEDecode", samples=["15", 0], vae=["1", 2]),
        "17": _node("PreviewImage", images=["16", 0]),
        "18": _node("GBX_TrainLoraImmiscible", model=["1", 0], latents=["5", 0], **training),
        "19": _node("PreviewImage", images=["18", 4]),
    }


def activations(checkpoint: str) -> dict:
    """Activations of the host's image: tapped, recorded, visualized, clustered and compared with a
    point.
    """
    prompt = host(checkpoint)
    prompt["5"]["inputs"]["model"] = ["10", 0]
    tapped = {"activations": ["12", 0], "image": ["6", 0]}
    return prompt | {
        "10": _node("GBX_ActivationRecorder", model=["1", 0]),
        "11": _node("GBX_ReadActivations", recording=["10", 1], latent=["5", 0]),
        "12": _node("GBX_LayerActivationTap", model=["1", 0], positive=["2", 0], latent=["5", 0]),
        "13": _node("GBX_ActivationPicture", activations=["11", 0]),
        "14": _node("GBX_ActivationSimilarity", points="50%, 50%", **tapped),
        "15": _node("GBX_ActivationClusters", **tapped),
        **{str(20 + node): _node("PreviewImage", images=[str(node), 0]) for node in (13, 14, 15)},
    }


def conditioning(checkpoint: str) -> dict:
    """The host's image from a prompt with replicated padding, with noise rescaled as if trained at
    128 pixels.
    """
    prompt = host(checkpoint)
    prompt["5"]["inputs"] |= {"model": ["10", 0], "positive": ["11", 0]}
    return prompt | {
        "10": _node("GBX_ResolutionNoiseRescale", model=["1", 0], latent=["4", 0], base_width=128),
        "11": _node("GBX_NoisyReplicatePadding", clip=["1", 1], text="a portrait"),
        "12": _node("PreviewImage", images=["10", 2]),
    }


def _node(class_type: str, **inputs) -> dict:
    return {"class_type": class_type, "inputs": inputs}


def weights(checkpoint: str) -> dict:
    """A space of two LoRAs trained on the host's image; one point is sampled, and one step of
    inversion is run.
    """
    prompt = host(checkpoint)
    trained = {
        "model": ["1", 0],
        "latents": ["5", 0],
        "positive": ["2", 0],
        "steps": 2,
        "rank": 1,
        "pairing": "off",
    }
    again = {
        "positive": ["2", 0],
        "negative": ["3", 0],
        "latent_image": ["4", 0],
        "seed": 1,
        "steps": 2,
        "cfg": 5.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
    }
    return prompt | {
        "20": _node("GBX_TrainLoraImmiscible", seed=1, **trained),
        "21": _node("GBX_TrainLoraImmiscible", seed=2, **trained),
        "22": _node(
            "GBX_W2WBuildSpace", filename="glassbox-check", lora_1=["20", 1], lora_2=["21", 1]
        ),
        "23": _node("GBX_W2WSample", space=["22", 0], seed=1),
        "24": _node("GBX_W2WApply", model=["1", 0], point=["23", 0], start_percent=0.3),
        "25": _node("KSampler", model=["24", 0], **again),
        "26": _node("PreviewImage", images=["27", 0]),
        "27": _node("VAEDecode", samples=["25", 0], vae=["1", 2]),
        "28": _node(
            "GBX_W2WInvert",
            model=["1", 0],
            space=["22", 0],
            latent=["5", 0],
            positive=["2", 0],
            steps=1,
        ),
        "29": _node("PreviewImage", images=["28", 2]),
    }


def neurons(checkpoint: str) -> dict:
    """Statistics of three prompts, the score of one, a search of two seconds for its neurons, and a
    masked image.
    """
    prompt = host(checkpoint)
    given = {"model": ["1", 0], "clip": ["1", 1]}
    small = {"noise_samples": 2, "width": 256, "height": 256, "prompts": "a portrait"}
    again = prompt["5"]["inputs"] | {"model": ["33", 0]}
    return prompt | {
        "30": _node(
            "GBX_NeuronStatistics", prompts="a portrait\na dog\na small town by the sea", **given
        ),
        "31": _node("GBX_MemorizationScore", **given, **small),
        "32": _node(
            "GBX_NemoLocalize",
            statistics=["30", 0],
            threshold=0.01,
            time_budget=2.0,
            **given,
            **small,
        ),
        "33": _node("GBX_NemoNeuronMask", model=["1", 0], mask=["32", 0]),
        "34": _node("KSampler", **again),
        "35": _node("VAEDecode", samples=["34", 0], vae=["1", 2]),
        **{
            str(36 + node): _node("PreviewImage", images=[str(source), slot])
            for node, (source, slot) in enumerate(((31, 0), (32, 1), (35, 0)))
        },
    }


FAMILIES: dict[str, Callable[[str], dict]] = {
    "host": host,
    "activations": activations,
    "noise": noise,
    "conditioning": conditioning,
    "weights": weights,
    "neurons": neurons,
}


@dataclass(frozen=True)
class Result:
    """What became of one family: seconds, peak memory in bytes, and the sentence that says why it
    failed, if it did.

    `memory` is the resident memory of ComfyUI's process, `card_memory` what all programs hold on
    the card.
    """

    family: str
    seconds: float
    memory: int
    card_memory: int
    failure: str | None = None


def run(comfyui: Path, checkpoint: Path, port: int | None) -> int:
    """Run every family on the checkpoint, write the report, and return 1 if something does not
    work.
    """
    checkpoint = checked(checkpoint)
    extra_paths = _write_paths(_folder_of_its_own(checkpoint))
    print("Starting ComfyUI (about 20 s) ...", flush=True)
    arguments = (*serve.CANVAS_ARGUMENTS, "--extra-model-paths-config", str(extra_paths))
    with Server(comfyui, paths.HOST, arguments, port) as server:
        client = Client(server.url)
        known = client.object_info()
        results = [
            _try(server, client, name, completed(build(checkpoint.name), known))
            for name, build in FAMILIES.items()
        ]
        text = report(
            checkpoint,
            client.system_stats(),
            server.log.read_text("utf-8", errors="replace"),
            results,
        )
    target = paths.OUT / f"check_{checkpoint.stem}.md"
    paths.write_atomically(target, text)
    print(
        f"\n{text}\nThe report is in {target}; paste it into an issue if something does not work."
    )
    return int(any(result.failure for result in results))


def report(checkpoint: Path, stats: dict, log: str, results: list[Result]) -> str:
    """Checkpoint, model, machine and results in Markdown; `stats` is ComfyUI's /system_stats, `log`
    its output.
    """
    system, card = stats["system"], stats["devices"][0]
    # Such as "model_type EPS" and "model weight dtype torch.float16, manual cast: None".
    model = re.findall(
        r"^(?:model_type|model weight dtype|Requested to load) .*", log, re.MULTILINE
    )
    version = tomllib.loads((paths.ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "version"
    ]
    facts = {
        "Checkpoint": f"{checkpoint.name}, {checkpoint.stat().st_size / 1e9:.2f} GB",
        "Model": "; ".join(dict.fromkeys(model)) or "not loaded",
        "Glassbox": version,
        "ComfyUI": system["comfyui_version"],
        "PyTorch": system["pytorch_version"],
        "Python": platform.python_version(),
        "System": f"{platform.system()} {platform.machine()}, {system['ram_total'] / 1e9:.1f} GB",
        "Device": f"{card['name']}, {card['vram_total'] / 1e9:.1f} GB",
    }
    on_card = card["type"] != "cpu"
    rows = [
        (
            result.family,
            f"{result.seconds:.1f}",
            f"{result.memory / 1e9:.1f}",
            f"{result.card_memory / 1e9:.1f}" if on_card else "-",
            f"FAILED: {result.failure}" if result.failure else "works",
        )
        for result in results
    ]
    header = ("family", "seconds", "memory (GB)", "card (GB)", "result")
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    text = "\n".join(["### Glassbox check", "", *lines, "", "```", table(header, rows), "```", ""])
    return text.replace(str(checkpoint.parent), "...").replace(str(Path.home()), "~")


def checked(checkpoint: Path) -> Path:
    """The whole path of a checkpoint; raises LaunchError when there is no such file or ComfyUI
    cannot load its kind.
    """
    checkpoint = checkpoint.expanduser().absolute()
    if not checkpoint.is_file():
        raise LaunchError(
            f"There is no checkpoint file {checkpoint}: give the path of a .safetensors file."
        )
    if checkpoint.suffix.lower() not in _KINDS:
        raise LaunchError(
            f"{checkpoint.name} is no checkpoint that ComfyUI loads: give a .safetensors file."
        )
    return checkpoint


def completed(prompt: dict, object_info: dict) -> dict:
    """The prompt with the default of every widget that it does not set."""
    full = {}
    for number, entry in prompt.items():
        info = {"input": {}, **object_info.get(entry["class_type"], {})}
        defaults = {widget.name: widget.default for widget in widgets(info) if widget.in_prompt}
        full[number] = {**entry, "inputs": {**defaults, **entry["inputs"]}}
    return full


def _folder_of_its_own(checkpoint: Path) -> Path:
    """A folder with only a link to the checkpoint, since ComfyUI lists every file in and below a
    folder.

    The checkpoint's own folder where the system makes no links.
    """
    folder = paths.HOST / _LINKS
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for link in (os.symlink, os.link):
        with contextlib.suppress(OSError, NotImplementedError):
            link(checkpoint, folder / checkpoint.name)
            return folder
    return checkpoint.parent


def _write_paths(folder: Path) -> Path:
    """A configuration file that makes ComfyUI search the folder for checkpoints first (JSON, which
    YAML contains).
    """
    target = paths.HOST / _PATHS_FILE
    entry = {"base_path": str(folder), "checkpoints": ".", "is_default": True}
    paths.write_atomically(target, json.dumps({"glassbox_check": entry}))
    return target


def _try(server: Server, client: Client, family: str, prompt: dict) -> Result:
    """Run one family's prompt and note how much memory the server takes meanwhile."""
    print(f"  {family} ...", flush=True)
    start, failure, peak = time.monotonic(), None, [0, 0]
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(server, client, peak, ended), daemon=True)
    watcher.start()
    try:
        client.wait(client.queue(prompt))
    except LaunchError as error:
        failure = str(error)
    finally:
        ended.set()
        watcher.join()
    return Result(family, time.monotonic() - start, *peak, failure)


def _watch(server: Server, client: Client, peak: list[int], ended: threading.Event) -> None:
    """Keep the highest memory of the process and of the card, in bytes, until `ended` is set."""
    import psutil  # here, because the launcher is imported before its environment exists

    with contextlib.suppress(
        LaunchError, psutil.Error
    ):  # the server has ended: the run itself reports it
        while True:
            peak[0] = max(peak[0], psutil.Process(server.process_id).memory_info().rss)
            card = client.system_stats()["devices"][0]
            peak[1] = max(peak[1], card["vram_total"] - card["vram_free"])
            if ended.wait(_WATCH_SECONDS):
                return
