"""`run.py fuzz --stop`: how long Stop waits in each node at its largest inputs.

ComfyUI's Stop is a flag: a run ends when something looks at it. Each node runs once in this
process, and the longest time between two looks is the longest that Stop can wait in it. Evaluations
of models are left out, since Stop may wait for one. A node that runs for long is stopped, as a
person would do it. Times are those of the processor, so that other programs on the machine do not
count.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.launcher import paths, studies
from tools.launcher.in_process import Comfy, describe, start
from tools.launcher.widgets import Input, inputs

from . import prompts

_RESULT, _OF = "stop", "stop of "  # the result file, and how the name of a node's number begins
_LIMIT = 3.0  # seconds until a node is stopped
_LOOK, _LONG = (
    0.05,
    0.3,
)  # seconds between two looks at where a node is, and after which the place is noted
_IMAGES, _SIDE, _MEMBERS = 2, 1024, 600
_LATENT = (64, 24, 64, 64)
_CHANNELS = (
    (320, 64),
    (640, 32),
    (1280, 16),
)  # channels and side of the activations, as of an image of 512 pixels
# What the numbers of a node are at most; others stay at their defaults. All of an option's range
# where it is less.
_LARGEST = {
    r"^(resolution|size|clusters|columns|epochs|keep|pool_size|features|training_steps)$": 10**9,
    r"^(count|candidates|components|top_images|steps|sample_steps|sampling_steps)$": 10**9,
    r"^(width|height)$": 128,
    r"^noise_samples$": 8,
}
#: Imported before, since that is no work of a node.
_IMPORTED = (
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "scipy.optimize",
    "sklearn.cluster",
    "sklearn.svm",
)
_IMPORTED += ("sklearn.linear_model", "sklearn.model_selection")
_TEXTS = {
    r"^points$": "\n".join(f"{7 * number % _SIDE}, {13 * number % _SIDE}" for number in range(400)),
    r"prompts$": "\n".join(f"portrait of person {number}" for number in range(2000)),
}


@dataclass
class Clock:
    """The longest time between two looks at Stop, outside of evaluations."""

    last: float = field(default_factory=time.process_time)
    longest: float = 0.0
    where: str = ""
    running: int = 0  # evaluations, one inside of another
    _place: str = ""

    def look(self) -> None:
        """Somebody looks, or an evaluation begins or ends."""
        waited = time.process_time() - self.last
        if not self.running and waited > self.longest:
            self.longest, self.where = waited, self._place
        self.last, self._place = time.process_time(), ""

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Stop may wait for what the block does."""
        self.look()
        self.running += 1
        try:
            yield
        finally:
            self.look()
            self.running -= 1

    def note(self, thread: int) -> None:
        """Remember where a thread of the pack is, when nobody has looked for long."""
        if self.running or self._place or time.process_time() - self.last < _LONG:
            return
        stack = traceback.extract_stack(sys._current_frames().get(thread))
        ours = [entry for entry in stack if str(paths.ROOT / "nodes") in entry.filename]
        self._place = " < ".join(
            f"{Path(entry.filename).stem}.{entry.name}" for entry in ours[:-4:-1]
        )


class Trial:
    """ComfyUI in this process, its Stop button watched. Once in a process: it changes ComfyUI's
    functions.
    """

    def __init__(self, nodes: Comfy):
        import comfy.clip_vision
        import comfy.model_base
        import comfy.model_management as management
        import comfy.sd
        import comfy.utils
        import torch

        self._comfy, self._clock = nodes, Clock()
        stop = management.throw_exception_if_processing_interrupted

        def look() -> None:
            self._clock.look()
            stop()

        management.throw_exception_if_processing_interrupted = look
        comfy.utils.set_progress_bar_global_hook(
            lambda *_, **__: look()
        )  # as ComfyUI's server does
        for owner, names in (
            (comfy.model_base.BaseModel, ("apply_model",)),
            (comfy.sd.VAE, ("encode", "decode")),
            (comfy.sd.CLIP, ("encode_from_tokens",)),
            (comfy.clip_vision.ClipVisionModel, ("encode_image",)),
            (torch.autograd, ("backward", "grad")),
            (torch.Tensor, ("backward",)),
        ):
            for name in names:
                setattr(owner, name, self._evaluation(getattr(owner, name)))

    def _evaluation(self, work: Callable) -> Callable:
        def evaluated(*args, **kwargs):
            with self._clock.evaluation():
                return work(*args, **kwargs)

        return evaluated

    def run(self, node: str, given: dict) -> tuple[float, str, str]:
        """The longest wait of a node in seconds, where that was, and how the node ended."""
        import comfy.model_management as management

        self._clock = clock = Clock()
        main, ended, begun, pressed = (
            threading.get_ident(),
            threading.Event(),
            time.process_time(),
            [],
        )

        def watch() -> None:
            while not ended.wait(_LOOK):
                clock.note(main)
                if not pressed and time.process_time() - begun > _LIMIT:
                    pressed.append(True)
                    management.interrupt_current_processing()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            made, how = self._comfy.run(node, **given), "done"
            for value in made:
                if hasattr(value, "generate_noise"):  # what a sampler then waits for
                    value.generate_noise(given["latent"])
        except management.InterruptProcessingException:
            how = "stopped"
        except Exception as error:
            how = f"{type(error).__name__}: {error}"
        finally:
            ended.set()
            watcher.join()
            management.interrupt_current_processing(False)
        clock.look()
        return clock.longest, clock.where, how


class Inputs:
    """The largest inputs of each node that a small computer can hold, without a model evaluated at
    such a size.
    """

    def __init__(self, comfy: Comfy, base: Path):
        self._comfy, self._base, self._made = comfy, base, {}
        self.generator = prompts.Generator(
            {name: describe(name, node) for name, node in comfy.classes.items()}, 0
        )
        self._model, self._clip, self._vae = comfy.run("GBX_LoadDemoModel", weights="avatars-v2")

    def of(self, node: str) -> dict:
        """The inputs of a node."""
        prompt, number = self.generator.plain(node)
        given = {}
        for one in inputs(self.generator.describe(node)):
            value = prompt[number]["inputs"].get(one.name)
            if one.is_widget:
                given[one.name] = _largest(one, value)
            elif one.required:
                large = self._large(one.kind)
                given[one.name] = self._plain(prompt, value) if large is None else large
        more = self._more(node)
        if getattr(self._comfy.classes[node], "INPUT_IS_LIST", False):
            more = {
                name: value if isinstance(value, list) else [value] for name, value in more.items()
            }
            return {name: [value] for name, value in given.items()} | more
        return given | more

    def _plain(self, prompt: dict, value):
        """A value of a prompt; a link gives what its node makes."""
        if not isinstance(value, list):
            return value
        name, slot = prompt[value[0]]["class_type"], value[1]
        given = {
            key: self._plain(prompt, other) for key, other in prompt[value[0]]["inputs"].items()
        }
        if getattr(self._comfy.classes[name], "INPUT_IS_LIST", False):
            given = {key: [other] for key, other in given.items()}
        return self._comfy.run(name, **given)[slot]

    def _large(self, kind: str):
        """What a socket of a type is given, the same each time; None for types of which all are
        small.
        """
        make = {
            "MODEL": lambda: self._model,
            "CLIP": lambda: self._clip,
            "VAE": lambda: self._vae,
            "IMAGE": lambda: self._draw(_IMAGES, _SIDE, _SIDE, 3),
            "MASK": lambda: self._draw(_IMAGES, _SIDE, _SIDE).round(),
            "LATENT": lambda: {"samples": self._draw(*_LATENT)},
            "ACTIVATIONS": self._activations,
            "W2W_SPACE": self._space,
            "W2W_POINT": self._point,
            "NEURON_MASK": self._neuron_mask,
            "SPARSE_AUTOENCODER": self._autoencoder,
            "FEW_SHOT_SEGMENTER": self._segmenter,
            "LOSS_MAP": lambda: {"loss": [1 / (1 + step) for step in range(100_000)]},
        }.get(kind)
        if make is not None and kind not in self._made:
            self._made[kind] = make()
        return self._made.get(kind)

    def _draw(self, *shape: int):
        import torch

        return torch.rand(shape, generator=torch.Generator().manual_seed(0))

    def _activations(self):
        module = self._comfy.module("nodes.activations.activations")
        tensors = {
            f"up-level{level}-repeat0-vit-out": self._draw(_IMAGES, channels, side, side)
            for level, (channels, side) in enumerate(_CHANNELS)
        }
        return module.Activations(tensors, tuple(map(module.Row, range(_IMAGES))), 1.0, 50.0, {})

    def _space(self):
        """A space of SD1.5's size in rank 1."""
        import torch

        module, layouts = (
            self._comfy.module("nodes.weights.space"),
            self._comfy.module("nodes.weights.flat_layout"),
        )
        layers = {f"layer{number:03}.attn1.to_q": ((1, 389), (389, 1)) for number in range(128)}
        layout = layouts.Layout.of(layers, 1, 1.0)
        coefficients, one = self._draw(_MEMBERS, _MEMBERS) - 0.5, torch.ones(layout.size)
        return module.Space(
            layout,
            torch.zeros(layout.size),
            one,
            (self._draw(_MEMBERS, layout.size) / layout.size).half(),
            coefficients,
            tuple(f"member_{number:04}" for number in range(_MEMBERS)),
            torch.linspace(100, 1, _MEMBERS),
            labels={
                f"label {number}": (coefficients[:, number] > 0).float() for number in range(20)
            },
            about={"name": "large", "standardized": True},
        )

    def _point(self):
        space = self._large("W2W_SPACE")
        return self._comfy.module("nodes.weights.space").Point(
            space, space.coefficients[0], "large"
        )

    def _neuron_mask(self):
        """Every value neuron, found for 500 prompts."""
        mask, layers = (
            self._comfy.module("nodes.neurons.mask"),
            self._comfy.module("nodes.neurons.neuron_layers"),
        )
        found = layers.value_layers(self._model.model.diffusion_model)
        neurons = {layer.path: tuple(range(layer.width)) for layer in found}
        z = {path: {str(one): float(one) for one in of_layer} for path, of_layer in neurons.items()}
        searches = tuple(
            mask.SearchRecord(f"prompt {number}", neurons, True, {"z": z}) for number in range(500)
        )
        return mask.NeuronMask(
            {path: dict.fromkeys(one, 0.0) for path, one in neurons.items()}, searches
        )

    def _autoencoder(self):
        import torch

        module, channels, features = (
            self._comfy.module("nodes.activations.sparse_autoencoder"),
            _CHANNELS[0][0],
            32768,
        )
        decoder = torch.nn.functional.normalize(self._draw(features, channels) - 0.5, dim=1)
        zeros, id_ = torch.zeros, "up-level0-repeat0-vit-out"
        return module.SparseAutoencoder(
            id_, 64, decoder, decoder, zeros(channels), zeros(features), zeros(features) + 1
        )

    def _segmenter(self):
        given = {
            "activations": self._large("ACTIVATIONS"),
            "part_1": self._large("MASK"),
            "part_names": "",
        }
        return self._comfy.run(
            "GBX_TrainFewShotSegmenter", **given, resolution=64, epochs=1, seed=0
        )[0]

    def _maps(self, prompt: str):
        """Attention maps of the demo model on images of 256 pixels."""
        positive = self._comfy.run("CLIPTextEncode", clip=self._clip, text=prompt)[0]
        how = {
            "preset": "cross_attention",
            "ids": "",
            "noise_unit": "paper_t",
            "level": 50.0,
            "seed": 0,
        }
        how |= {"noise_samples": 1, "pool_size": 1, "precision": "fp32"}
        latent = {"samples": self._draw(_IMAGES, 24, 32, 32)}
        return self._comfy.run(
            "GBX_LayerActivationTap", model=self._model, positive=positive, latent=latent, **how
        )[0]

    def _small(self):
        return {"samples": self._draw(1, 24, 8, 8)}

    def _demo_point(self):
        space = self._comfy.run("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")[0]
        return self._comfy.module("nodes.weights.space").Point(space, space.coefficients[0], "demo")

    def _more(self, node: str) -> dict:
        """What single nodes are given instead, since it is more, or since the rest needs it."""
        images, activations = self._large("IMAGE"), self._large("ACTIVATIONS")
        match node:
            case "GBX_ActivationCorrespondence":
                return {"mutual": True}
            case "GBX_ActivationPicture":
                return {"mode": "contact_sheet"}
            case "GBX_ScoreActivations":
                return {
                    "measure": "parts",
                    "part_1": self._large("MASK"),
                    "train_images": 1,
                }
            case "GBX_TokenHeatMap":
                prompt = "portrait, red hair, beard, glasses, hat, smiling"
                return {"activations": self._maps(prompt), "prompt": prompt, "words": ""}
            case "GBX_ImmiscibleLatentBatch":
                return {"pairing": "pool"}
            case "GBX_ImmiscibleNoise":
                return {
                    "pairing": "nearest",
                    "nearest_form": "official",
                    "k": 16.0,
                    "gain_batch_size": 4096,
                }
            case "GBX_ResizeToBuckets":
                return {"images": [images] * 2}
            case "GBX_W2WSheet":
                return {
                    "images": [images[:1, ::4, ::4]] * 256,
                    "labels": [f"a, {one}" for one in range(256)],
                }
            case "GBX_W2WApply" | "GBX_W2WGuidance" | "GBX_W2WGuider":
                return {"point": self._demo_point()}
            case "GBX_W2WInvert":
                return {"latent": self._small(), "space": self._demo_point().space}
            case "GBX_W2WLabelMembers":
                return {
                    "source": "file_names",
                    "words": "\n".join(f"word {number}" for number in range(1000)),
                }
            case "GBX_W2WFitDirections":
                return {"method": "svm"}
            case "GBX_W2WBuildSpace":
                return {"folder": self._loras(), "filename": "built", "rank": 64}
            case "GBX_W2WSaveSpace":
                return {"filename": "saved"}
            case "GBX_SteeringDirection":
                return {"method": "principal_component"}
            case "GBX_MemorizationReport":
                many = images[:1, ::2, ::2].expand(16, -1, -1, -1)
                return {
                    "images_before": many,
                    "images_after": many,
                    "reference_image": many[:1],
                    "similarity": "ssim",
                }
            case "GBX_NeuronMaskEdit":
                return {"other_mask": self._large("NEURON_MASK")}
            case "GBX_LoadActivations":
                how = {"filename_prefix": "stop/a", "format": "safetensors"}
                return {
                    "file": self._comfy.run("GBX_SaveActivations", activations=activations, **how)[
                        -1
                    ]
                }
            case "GBX_LoadNeuronMask":
                mask = self._large("NEURON_MASK")
                return {
                    "file": self._comfy.run(
                        "GBX_SaveNeuronMask", mask=mask, filename_prefix="stop/m"
                    )[0]
                }
            case "GBX_PromptSteeringDirection":
                return {
                    "latent": self._small(),
                    "toward_prompts": "portrait, beard",
                    "away_prompts": "portrait, bald",
                }
            case "GBX_SeedScout":
                return {
                    "latent": self._small(),
                    "clip": self._clip,
                    "prompt": "portrait, beard",
                    "words": "beard",
                }
            case "GBX_TrainLoraImmiscible":
                return {"latents": self._small()}
            case "GBX_LayerActivationTap":
                return {"latent": {"samples": self._draw(2, 24, 16, 16)}}
            case "GBX_PatchingMap" | "GBX_SizeSheet":
                return {"latent": self._small()}
            case "GBX_TrainSparseAutoencoder":
                return {"latent": self._small(), "steps": 2, "prompts": "portrait\nbeard"}
        return {}

    def _loras(self) -> str:
        """A folder of 40 LoRAs of rank 64."""
        import folder_paths
        import torch
        from safetensors.torch import save_file

        folder, block = (
            self._base / "loras" / "people",
            "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0",
        )
        folder.mkdir(parents=True)
        for kind in ("loras", "w2w"):
            (self._base / kind).mkdir(exist_ok=True)
            folder_paths.add_model_folder_path(kind, str(self._base / kind), is_default=True)
        for number in range(40):
            tensors = {}
            for layer in (
                f"{block}_attn{attention}_to_{name}" for attention in (1, 2) for name in "qkv"
            ):
                tensors[f"{layer}.lora_down.weight"] = torch.randn(64, 640)
                tensors[f"{layer}.lora_up.weight"] = torch.randn(640, 64)
            save_file(tensors, folder / f"{number}.safetensors")
        return "people"


def _largest(one: Input, plain: object) -> object:
    """The value of a widget."""
    if one.kind in ("INT", "FLOAT"):
        value = next(
            (value for pattern, value in _LARGEST.items() if re.search(pattern, one.name)), None
        )
        low, high, default = (one.options.get(key) for key in ("min", "max", "default"))
        return default if value is None else type(low)(min(max(value, low), high))
    if one.kind == "STRING":
        return next(
            (text for pattern, text in _TEXTS.items() if re.search(pattern, one.name)), plain
        )
    return plain


def run(comfyui_folder: Path, only: Sequence[str]) -> int:
    """Run every node, or those named again, and write the numbers after each; returns 1 where Stop
    waits a second.
    """
    results = studies.load_module("common.results", "studies")
    earlier = (
        json.loads((results.RESULTS / f"{_RESULT}.json").read_text("utf-8"))["numbers"]
        if only
        else {}
    )
    found = {
        name.removeprefix(_OF): one["value"]
        for name, one in earlier.items()
        if name.startswith(_OF)
    }
    for module in _IMPORTED:
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(comfy := start(comfyui_folder, Path(folder)))
        large = Inputs(comfy, Path(folder))
        for node in only or large.generator.nodes:
            try:
                given = large.of(node)
            except (
                Exception
            ) as error:  # a node that could not be tried is named, and the rest goes on
                print(f"{node}: not tried ({type(error).__name__}: {error})"[:200], flush=True)
                continue
            longest, where, how = trial.run(node, given)
            print(f"{node}: {longest:.2f} s {where} ({how[:160]})", flush=True)
            if how in ("done", "stopped"):
                found[node] = longest
                assets = paths.ROOT / "assets" / "avatars-v2"
                results.write(_RESULT, "python run.py fuzz --stop", 0, assets, _numbers(found))
    return int(max(found.values()) > 1)


def _numbers(found: dict[str, float]) -> dict[str, dict]:
    what = "seconds of the processor between two looks at Stop, outside of evaluations"
    slow = {node: seconds for node, seconds in found.items() if seconds > 1}
    worst = max(found, key=found.__getitem__)
    numbers: dict[str, tuple[float, str, str]] = {
        "stop: nodes": (
            len(found),
            "nodes",
            "run at large inputs, to the end or to Stop after some seconds",
        ),
        "stop: over a second": (len(slow), "nodes", ", ".join(slow) or "none"),
        "stop: longest": (round(found[worst], 2), "s", f"{what}: {worst}"),
    }
    numbers |= {f"{_OF}{node}": (round(seconds, 2), "s", what) for node, seconds in found.items()}
    return {
        name: {"value": value, "n": len(found), "unit": unit, "what": what}
        for name, (value, unit, what) in numbers.items()
    }
