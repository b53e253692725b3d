"""Every node that makes a MODEL or a GUIDER, beside what else stands on that MODEL or its prompts.

Each feature of ComfyUI comes in a form that changes nothing by itself, such as an area of the whole
image or a cache with the threshold 0. What a node makes must then be what it makes without.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import shutil
import sysconfig
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import repository
import tapping
import torch
import weight_nodes
from robustness import fuzz, prompts

from tools.launcher import in_process

pytestmark = pytest.mark.slow

_CONTRACT = json.loads((repository.ROOT / "tests" / "node_contract.json").read_text("utf-8"))
#: PositionalResample: it changes nothing at the demo model's own size; the others' MODEL is a
#: LoRA's.
_ELSEWHERE = {"GBX_PositionalResample", "GBX_TrainLoraImmiscible", "GBX_AdversarialUnlearning"}
_NODES = [
    name
    for name, entry in _CONTRACT.items()
    if entry["inputs"].get("model") == "MODEL"
    and {"model: MODEL", "guider: GUIDER"} & set(entry["outputs"])
    and name not in _ELSEWHERE
]
#: Nodes that evaluate the MODEL themselves.
_EVALUATING = (
    *(
        "GBX_LayerActivationTap",
        "GBX_PatchingMap",
        "GBX_PromptSteeringDirection",
    ),
    *(
        "GBX_SeedScout",
        "GBX_TrainSparseAutoencoder",
        "GBX_SizeSheet",
        "GBX_MemorizationScore",
    ),
    *(
        "GBX_CalibrateThreshold",
        "GBX_NeuronStatistics",
        "GBX_NemoLocalize",
        "GBX_EmbeddingAdjustment",
    ),
    *("GBX_ConceptNeurons", "GBX_MemorizationAudit", "GBX_W2WInvert", "GBX_TrainLoraImmiscible"),
)
_TOLERANCE = 1e-3  # of the largest value: other orders of the same sums, over two steps
_LEVEL = 1 / 255 + 1e-6  # outputs may be images of 8 bits, or have gone through training in bf16
_PROMPTS = {
    "positive": "portrait, red hair",
    "conditioning": "portrait, red hair",
    "negative": "",
    "other": "beard",
}


class Host:
    """Runs nodes in this process on plain inputs, with something else on the MODEL or the
    prompts.
    """

    def __init__(self, app, root):
        described = {name: in_process.describe(name, node) for name, node in app.classes.items()}
        self.app, self.generator, self._made = app, prompts.Generator(described, 0), {}
        self._names = (
            f"glassbox/trained_{number}" for number in itertools.count()
        )  # a training resumes by its name
        self._expected: dict[str, torch.Tensor] = {}
        self.model, self.clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
        self.prompts = {
            name: app.run("CLIPTextEncode", clip=self.clip, text=text)[0]
            for name, text in _PROMPTS.items()
        }
        family = weight_nodes.family(app, root)
        watched, recording = tapping.World(app, self.model, self.clip, None).record()
        latent = {"samples": self.sample(watched)}
        self.given = {
            "point": family.point,
            "space": family.space,
            "recording": recording,
            "latent": latent,
        }
        one = {
            "latent": {"samples": latent["samples"][:1]},
            "clip": self.clip,
            "prompt": "portrait, red hair",
        }
        self._of_node = {
            "GBX_SeedScout": one | {"words": "hair"},
            "GBX_NeuronStatistics": {"clip": self.clip},
        }
        # Adam's first step is the sign of the gradient, which rounding decides where it is next to
        # nothing (seed 0).
        self._of_node["GBX_W2WInvert"] = {"seed": 5, "precision": "fp32"}
        # In bf16 the embedding that it optimizes differs by rounding, and its images with it.
        self._of_node["GBX_MemorizationAudit"] = {"precision": "fp32"}

    def run(
        self,
        node: str,
        model=None,
        prompts: Mapping | None = None,
        after=None,
        guider: str = "CFGGuider",
        **given,
    ) -> torch.Tensor:
        """The latent of a sampler with the MODEL or GUIDER of a node; ``after`` changes its
        MODEL.
        """
        model, prompts = model or self.model, prompts or self.prompts
        made = self.outputs(node, model, prompts, **given)
        outputs = dict(zip(self.generator.describe(node)["output"], made, strict=False))
        if "GUIDER" in outputs:
            return self._sampled(outputs["GUIDER"], model)
        return self.sample(after(outputs["MODEL"]) if after else outputs["MODEL"], prompts, guider)

    def sample(
        self, model, prompts: Mapping | None = None, guider: str = "CFGGuider"
    ) -> torch.Tensor:
        """The latent of a sampler with a MODEL."""
        return self._sampled(self._guider(guider, model, prompts or self.prompts), model)

    def outputs(self, node: str, model=None, prompts: Mapping | None = None, **more) -> list:
        """What a node makes of plain inputs, and of ``more``."""
        model, prompts = model or self.model, prompts or self.prompts
        prompt, number = self.generator.plain(node)
        given = self.given | prompts | {"model": model, "source_positive": prompts["other"]}
        inputs = {
            name: given[name] if name in given else self._value(prompt, value)
            for name, value in prompt[number]["inputs"].items()
        }
        if node == "GBX_TrainSparseAutoencoder":
            inputs["name"] = next(self._names)
        if node == "GBX_NemoLocalize":  # its default method needs them, another does not
            inputs["statistics"] = self.outputs("GBX_NeuronStatistics", model, prompts)[0]
        return self._execute(node, inputs | self._of_node.get(node, {}) | more)

    def expected(self, node: str) -> torch.Tensor:
        """What a node makes with nothing else there."""
        if node not in self._expected:
            self._expected[node] = self.run(node)
        return self._expected[node]

    def _value(self, prompt: dict, value):
        """A value of a prompt; a link gives what its node has made, once."""
        if not isinstance(value, list):
            return value
        name, slot = prompt[value[0]]["class_type"], value[1]
        inputs = {
            key: self._value(prompt, given) for key, given in prompt[value[0]]["inputs"].items()
        }
        key = (
            name,
            *(
                given if isinstance(given, str | int | float) else id(given)
                for given in inputs.values()
            ),
        )
        if key not in self._made:
            self._made[key] = (
                self._execute(name, inputs),
                inputs,
            )  # kept, so that an id stays theirs
        return self._made[key][0][slot]

    def _execute(self, name: str, inputs: dict) -> list:
        """The outputs of a node, of lists their first."""
        node = self.app.classes[name]
        if getattr(node, "INPUT_IS_LIST", False):
            inputs = {key: [value] for key, value in inputs.items()}
        outputs = self.app.run(name, **inputs)
        lists = self.generator.describe(name)["output_is_list"]
        return [value[0] if many else value for value, many in zip(outputs, lists, strict=True)]

    def _guider(self, name: str, model, prompts: Mapping):
        """Guiders whose result is CFG 3 of the positive against the negative prompt."""
        given = {"positive": prompts["positive"], "negative": prompts["negative"], "cfg": 3.0}
        if name == "DualCFGGuider":
            given = {
                "cond1": prompts["positive"],
                "cond2": prompts["negative"],
                "negative": prompts["other"],
            }
            given |= {"cfg_conds": 3.0, "cfg_cond2_negative": 1.0, "style": "regular"}
        elif name == "PerpNegGuider":
            given |= {
                "negative": prompts["other"],
                "empty_conditioning": prompts["negative"],
                "neg_scale": 0.0,
            }
        return self.app.run(name, model=model, **given)[0]

    def _sampled(self, guider, model) -> torch.Tensor:
        run = self.app.run
        (sigmas,) = run("BasicScheduler", model=model, scheduler="normal", steps=2, denoise=1.0)
        (sampler,), (noise,) = (
            run("KSamplerSelect", sampler_name="euler"),
            run("RandomNoise", noise_seed=1),
        )
        given = {"sampler": sampler, "noise": noise, "sigmas": sigmas}
        latent = {"samples": torch.zeros(2, self.model.model.latent_format.latent_channels, 8, 8)}
        return run("SamplerCustomAdvanced", guider=guider, latent_image=latent, **given)[0][
            "samples"
        ]

    def each(self, change) -> dict:
        """The prompts, each changed."""
        return {name: change(prompt) for name, prompt in self.prompts.items()}


@pytest.fixture(scope="module")
def host(app, tmp_path_factory):
    return Host(app, tmp_path_factory.getbasetemp())


def _cached(host, name):
    given = {"reuse_threshold": 0.0, "start_percent": 0.0, "end_percent": 1.0, "verbose": False}
    return lambda model: host.app.run(name, model=model, **given)[0]


def _area(host, conditioning):
    area = {"width": 64, "height": 64, "x": 0, "y": 0, "strength": 1.0}
    return host.app.run("ConditioningSetArea", conditioning=conditioning, **area)[0]


def _both(host, first, second):
    return host.app.run("ConditioningCombine", conditioning_1=first, conditioning_2=second)[0]


def _ranges(host, conditioning):
    halves = [
        host.app.run(
            "ConditioningSetTimestepRange", conditioning=conditioning, start=start, end=end
        )[0]
        for start, end in ((0.0, 0.5), (0.5, 1.0))
    ]
    return _both(host, *halves)


# What else is there, as further arguments of Host.run; "after": behind the node's own MODEL.
_FEATURES = {
    "EasyCache before": lambda host: {"model": _cached(host, "EasyCache")(host.model)},
    "LazyCache before": lambda host: {"model": _cached(host, "LazyCache")(host.model)},
    "EasyCache after": lambda host: {"after": _cached(host, "EasyCache")},
    "LazyCache after": lambda host: {"after": _cached(host, "LazyCache")},
    "area": lambda host: {"prompts": host.each(lambda prompt: _area(host, prompt))},
    "regions": lambda host: {
        "prompts": host.each(lambda prompt: _both(host, _area(host, prompt), prompt))
    },
    "timestep ranges": lambda host: {"prompts": host.each(lambda prompt: _ranges(host, prompt))},
    "ControlNet": lambda host: {
        "prompts": host.each(partial(tapping.controlled, host.app, host.model))
    },
    "DualCFGGuider": lambda host: {"guider": "DualCFGGuider"},
    "PerpNegGuider": lambda host: {"guider": "PerpNegGuider"},
}
_OF_EVALUATIONS = (
    "EasyCache before",
    "LazyCache before",
    "area",
    "regions",
    "timestep ranges",
    "ControlNet",
)
_OF_MODELS = ("EasyCache after", "LazyCache after", "DualCFGGuider", "PerpNegGuider")

#: Guides DualCFGGuider's second prompt too, by its design: see
#: tests/comfy/weights/test_guidance.py.
_NOT_NEUTRAL = {("GBX_W2WGuidance", "DualCFGGuider")}


def _applies(feature: str, node: str) -> bool:
    makes_model = "model: MODEL" in _CONTRACT[node]["outputs"]
    return (makes_model or feature not in _OF_MODELS) and (node, feature) not in _NOT_NEUTRAL


@pytest.mark.parametrize(
    ("node", "feature"),
    [(node, feature) for node in _NODES for feature in _FEATURES if _applies(feature, node)],
)
def test_a_feature_that_changes_nothing_changes_nothing(host, feature, node):
    found, expected = host.run(node, **_FEATURES[feature](host)), host.expected(node)
    assert float((found - expected).abs().max()) <= _TOLERANCE * float(expected.abs().max())


def numbers(outputs) -> list[torch.Tensor]:
    """Every number of a node's outputs, those inside of its own types too."""
    if isinstance(outputs, torch.Tensor | bool | int | float):
        return [torch.as_tensor(outputs, dtype=torch.float32)]
    if dataclasses.is_dataclass(outputs):
        outputs = [getattr(outputs, field.name) for field in dataclasses.fields(outputs)]
    if isinstance(outputs, Mapping):
        outputs = list(outputs.values())
    return (
        [number for one in outputs for number in numbers(one)]
        if isinstance(outputs, list | tuple)
        else []
    )


@pytest.mark.parametrize(
    ("node", "feature"),
    [  # each node beside every second feature, and each feature beside every second node
        (node, feature)
        for number, node in enumerate(_EVALUATING)
        for feature in _OF_EVALUATIONS[number % 2 :: 2]
    ],
)
def test_an_evaluation_beside_a_feature_is_that_without_or_refused(host, node, feature):
    expected = numbers(host.outputs(node))
    assert expected
    try:
        found = numbers(host.outputs(node, **_FEATURES[feature](host)))
    except ValueError as error:
        assert fuzz.is_readable("ValueError", str(error))
        return
    assert len(found) >= len(
        expected
    )  # a conditioning also carries the feature, behind its own numbers
    for one, other in zip(found, expected, strict=False):
        # Root mean square: a first step of Adam and the edge of a letter turn rounding into large
        # single differences.
        assert float((one - other).square().mean().sqrt()) <= _LEVEL * max(
            1.0, float(other.abs().max())
        )


#: These draw, pair or report with a MODEL, and evaluate none.
_READING = (
    "GBX_MetadataReport",
    "GBX_ImmiscibleNoise",
)


@pytest.mark.parametrize("node", sorted({*_NODES, *_EVALUATING, *_READING}))
def test_a_model_that_nobody_holds_is_gone(host, node):
    """A network that outlives its MODELs is what ComfyUI calls a dead model, and searches for
    circles.
    """

    def used() -> tuple[weakref.ref, weakref.ref]:
        model, _, _ = host.app.run("GBX_LoadDemoModel", weights="avatars-v2")
        for value in host.outputs(node, model=model):
            if hasattr(value, "model_options") and not hasattr(value, "inner_set_conds"):
                host.sample(value)
            elif hasattr(value, "inner_set_conds"):
                host._sampled(value, model)
        host.sample(model)  # takes the patches off again
        return weakref.ref(model.model), weakref.ref(model.model.diffusion_model)

    gc.collect()
    gc.disable()
    try:
        assert [held() for held in used()] == [None, None]
    finally:
        gc.enable()


@pytest.fixture
def partially_loaded(monkeypatch):
    """ComfyUI has memory for 30 % of each model, unless all of it is requested, as for training."""
    from comfy import model_management

    load, load_one, whole = (
        model_management.load_models_gpu,
        model_management.LoadedModel.model_load,
        [],
    )

    def loading(models, *args, force_full_load=False, **kwargs):
        whole.append(force_full_load)
        load(models, *args, force_full_load=force_full_load, **kwargs)

    def in_part(loaded, lowvram_model_memory=0, force_patch_weights=False):
        memory = 0 if whole[-1] else int(0.3 * loaded.model.model_size())
        return load_one(loaded, memory, force_patch_weights)

    monkeypatch.setattr(model_management, "load_models_gpu", loading)
    monkeypatch.setattr(model_management.LoadedModel, "model_load", in_part)


@pytest.mark.parametrize("node", _NODES)
def test_a_partial_load_changes_nothing(host, node, request):
    from comfy import model_management

    expected = host.expected(node)
    model_management.unload_all_models()
    request.getfixturevalue("partially_loaded")
    try:
        found = host.run(node)
        # Train Slider's training loads the MODEL whole, and it is sampled as it lies there.
        assert host.model.model.model_lowvram or node == "GBX_TrainSlider"
    finally:
        model_management.unload_all_models()
    assert float((found - expected).abs().max()) <= _TOLERANCE * float(expected.abs().max())


def test_a_lora_behind_guidance_survives_a_partial_load(host, request):
    """Both change the same layers: one as the weight is used, the other as ComfyUI patches or casts
    it.
    """
    from comfy import model_management

    strengths = {"identity_strength": 1.3, "edit_strength": 1.0}
    changed = host.app.run(
        "GBX_W2WGuidance", model=host.model, point=host.given["point"], **strengths
    )[0]
    lora = {"lora_name": "people/member_02.safetensors", "strength_model": 1.0}
    both = host.app.run("LoraLoaderModelOnly", model=changed, **lora)[0]
    expected, without = host.sample(both), host.sample(changed)
    model_management.unload_all_models()
    request.getfixturevalue("partially_loaded")
    try:
        found = [host.sample(both)]
        assert host.model.model.model_lowvram
        host.sample(changed)  # takes the layers over, and gives them back
        found.append(host.sample(both))
        model_management.load_models_gpu([both], force_full_load=True)
        assert both.partially_unload(both.offload_device, both.model_size() // 2)
        found.append(host.sample(both))
    finally:
        model_management.unload_all_models()
    size = float(expected.abs().max())
    assert float((without - expected).abs().max()) > 10 * _TOLERANCE * size
    for one in found:
        assert float((one - expected).abs().max()) <= _TOLERANCE * size


_HOOKING = (
    "GBX_ActivationPatching",
    "GBX_ActivationSteering",
    "GBX_AttentionScaling",
    "GBX_NemoNeuronMask",
)
_HOOKING += ("GBX_SparseFeatureSteering",)
#: These sample, or read weights alone.
_COMPILED_TOO = {"GBX_SizeSheet", "GBX_NeuronStatistics"}
#: On plain inputs these change nothing, and hook nothing.
_NEUTRAL = {"GBX_ActivationSteering", "GBX_NemoNeuronMask"}


def compiled(model, backend="eager"):
    """A MODEL behind torch.compile, as TorchCompileModel puts it there; traced when its network is
    called first.
    """
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    clone = model.clone()
    set_torch_compile_wrapper(model=clone, backend=backend)
    return clone


#: What changes a run without a hook, each with inputs that change it.
_WITHOUT_HOOKS = {
    "GBX_W2WApply": {"strength": 3.0},
    "GBX_W2WApply of a part": {"strength": 3.0, "start_percent": 0.0, "end_percent": 0.5},
    "GBX_W2WGuidance": {"identity_strength": 3.0},
    "GBX_W2WGuider": {"identity_strength": 3.0},
    "GBX_MetadataSchedule of values": {
        "mode": "value",
        "apply_to": "positive",
        "reference_width": 512,
    },
    "GBX_MetadataSchedule of embeddings": {
        "mode": "embedding",
        "apply_to": "positive",
        "reference_width": 512,
    },
    "GBX_MetadataGuider": {"metadata_strength": 4.0, "reference_width": 512},
    "GBX_ResolutionNoiseRescale": {
        "mode": "retimed",
        "width": 256,
        "height": 256,
        "base_width": 64,
        "latent": None,
    },
    "GBX_BakeNeuronMask": {"strength": -1.0},
}
_GRAPHS: list[int] = []  # calls of a compiled graph


def traced(graph, _):
    """A backend of torch.compile that runs the graphs as they are, and notes their calls."""

    def run(*args):
        _GRAPHS.append(len(args))
        return graph(*args)

    return run


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("case", _WITHOUT_HOOKS)
def test_what_hooks_nothing_does_the_same_to_a_compiled_model(host, case, place):
    """All of it is in what ComfyUI gives the network, or in its weights; graphs read both at each
    call.
    """
    if place == "after" and "model: MODEL" not in _CONTRACT[case.split()[0]]["outputs"]:
        pytest.skip("it makes no MODEL")
    _GRAPHS.clear()
    _compare_compiled(host, case, place, traced)
    assert _GRAPHS


@pytest.mark.slow
@pytest.mark.endurance
@pytest.mark.parametrize("case", _WITHOUT_HOOKS)
def test_what_hooks_nothing_does_the_same_to_a_model_compiled_by_inductor(host, case):
    """The first compilation takes a minute or two."""
    if not shutil.which("g++") or not Path(sysconfig.get_path("include"), "Python.h").is_file():
        pytest.skip("inductor needs a C++ compiler and Python's headers.")
    _compare_compiled(host, case, "before", "inductor")


def _compare_compiled(host, case: str, place: str, backend) -> None:
    node, given = case.split()[0], _WITHOUT_HOOKS[case]
    plain, expected = host.sample(host.model), host.run(node, **given)
    size = float(plain.abs().max())
    changed = float((expected - plain).abs().max())
    assert changed > 10 * _TOLERANCE * size
    if place == "before":
        found = host.run(node, model=compiled(host.model, backend), **given)
    else:
        found = host.run(node, after=partial(compiled, backend=backend), **given)
    other = float((found - expected).abs().max())
    assert other <= _TOLERANCE * size


@pytest.mark.parametrize(
    "node",
    [
        *_HOOKING,
        "GBX_ActivationRecorder",
        "GBX_AdversarialUnlearning",
        *sorted({*_EVALUATING} - _COMPILED_TOO),
    ],
)
def test_what_hooks_the_network_refuses_a_compiled_model(host, node):
    """Graphs that torch has compiled before ignore hooks without a word."""
    with pytest.raises(ValueError, match=r"runs through torch\.compile, which cannot be hooked"):
        host.outputs(node, model=compiled(host.model))


@pytest.mark.parametrize("node", [node for node in _HOOKING if node not in _NEUTRAL])
def test_what_hooks_the_network_refuses_to_be_compiled_later(host, node, monkeypatch):
    from comfy.model_base import BaseModel

    (made,) = (one for one in host.outputs(node) if hasattr(one, "model_options"))
    monkeypatch.setattr(BaseModel, "apply_model", lambda *_, **__: pytest.fail("the run has begun"))
    with pytest.raises(ValueError, match=r"through torch\.compile behind a node that hooks"):
        host.sample(compiled(made))


def test_a_recorder_that_is_compiled_later_says_so_and_the_run_goes_on(host, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    made, recording = host.outputs("GBX_ActivationRecorder")[:2]
    latent = {"samples": host.sample(compiled(made))}
    with pytest.raises(ValueError, match=r"ran through torch\.compile"):
        host.app.run("GBX_ReadActivations", recording=recording, latent=latent, step_index=0)
