"""How often a sampling run waits for the device because of this pack: counted on the CPU, where it
costs nothing.
"""

import copy
import sys
from collections import Counter
from pathlib import Path

import pytest
import reduced
import torch
from model_changers import CHANGERS, LORA_NODES, PROMPT, edit_by_words, of_menu
from spy_device import SpyDevice
from tapping import World
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

#: What fetches numbers or sizes from a device, and so waits for it.
_FETCHES = {
    torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.__bool__, torch.Tensor.__index__,
    torch.Tensor.__complex__, torch.Tensor.__contains__, torch.Tensor.item, torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose,
    torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere,
    torch.masked_select, torch.Tensor.masked_select, torch.Tensor.unique,
    torch.Tensor.unique_consecutive,
    torch.bincount, torch.Tensor.bincount, torch.is_nonzero, torch.Tensor.is_nonzero,
}  # fmt: skip


def fetches(operation, args) -> bool:
    """Whether a call waits for the device, were its tensors there."""
    if operation in (
        torch.Tensor.__getitem__,
        torch.Tensor.__setitem__,
    ):  # a mask has as many places as it has ones
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in index)
    if operation in (torch.where, torch.Tensor.where):
        return len(args) == 1
    return operation in _FETCHES


def _after_the_run(frame) -> bool:
    """Whether an observer reads what it has recorded: the sampler has handed out its latent by
    then.
    """
    while frame is not None:
        if frame.f_code.co_name == "finished":
            return True
        frame = frame.f_back
    return False


class Fetches(TorchFunctionMode):
    """Notes the functions in files of a folder that fetch numbers from tensors, but for what is
    read after a run.
    """

    def __init__(self, folder):
        super().__init__()
        self._folder, self.functions = str(folder), []

    def __torch_function__(self, operation, types, args=(), kwargs=None):
        caller = sys._getframe(1)
        while caller is not None and "/torch/" in caller.f_code.co_filename:
            caller = caller.f_back
        ours = caller is not None and caller.f_code.co_filename.startswith(self._folder)
        if ours and fetches(operation, args) and not _after_the_run(caller):
            self.functions.append(caller.f_code.co_name)
        return operation(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def _lora(demo, model):
    space, _ = demo.app.run("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")
    point = demo.app.module("nodes.weights.space").Point(space, space.coefficients[0])
    interval = {"start_percent": 0.2, "end_percent": 0.9}
    return demo.app.run("GBX_W2WApply", model=model, point=point, strength=0.5, **interval)[0]


def _scaled(demo, model):
    factors = demo.app.module("nodes.neurons.neuron_factors_comfy")
    named = model.model.diffusion_model.named_modules()
    found = {
        name: torch.full((one.out_features,), 0.5)
        for name, one in named
        if name.endswith("attn2.to_v")
    }
    return factors.with_scaled(model, found, (10.0, 0.1), False)


def _scaled_by_prompt(demo, model):
    factors = demo.app.module("nodes.neurons.neuron_factors_comfy")
    named = model.model.diffusion_model.named_modules()
    found = {
        name: torch.zeros(one.out_features) for name, one in named if name.endswith("attn2.to_v")
    }
    return factors.with_scaled_by_prompt(model, [(demo.negative[0][0], found)], (10.0, 0.1), True)


def _gated(demo, model):
    schedule = demo.app.module("nodes.conditioning.metadata_schedule").GateSchedule(
        curve="cosine",
        exponent=1.0,
        fields="all",
        reference_width=0,
        reference_height=0,
        mode="value",
        apply_to="both",
    )
    return demo.app.module("nodes.conditioning.metadata_schedule_comfy").gated(
        model, schedule, False
    )


def _recorded(demo, model):
    return demo.record(model=model)[0]


PATCHES = (_lora, _scaled, _scaled_by_prompt, _gated, _recorded)


def _fetches(demo, model, steps):
    """But for places in the table of sigmas, which are computed from a number."""
    folder = Path(demo.app.module("nodes.host.evaluate").__file__).parents[1]
    with Fetches(folder) as counted:
        demo.sample(model, demo.latent(1, 64, 64), steps=steps)
    return [name for name in counted.functions if name != "noise_fraction"]


@pytest.mark.parametrize("order", [PATCHES, PATCHES[::-1]], ids=["forward", "backward"])
def test_noise_levels_are_fetched_once_an_evaluation(demo, order):
    """However many patches need them, and although each evaluation is of two prompts."""
    model = demo.model
    for patch in order:
        model = patch(demo, model)
    few, many = (_fetches(demo, model, steps) for steps in (1, 3))
    assert few.count("levels_of") == 1 and many.count("levels_of") == 3
    assert len(many) - len(few) == 2, "besides, nothing is fetched in every step"


@pytest.mark.parametrize("use", CHANGERS)
def test_no_node_waits_in_a_step(demo, use):
    """Each node of the menu that changes a MODEL, see ``model_changers``: but for the noise level,
    once a step.
    """
    latent = demo.latent(1, 64, 64)
    models = {
        steps: CHANGERS[use][1](demo, demo.model, latent=latent, steps=steps) for steps in (1, 3)
    }
    few, many = (Counter(_fetches(demo, model, steps)) for steps, model in models.items())
    added = many - few
    assert added.pop("levels_of", 0) <= 2
    assert not added


@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_an_edit_with_a_text_of_another_length_does_not_wait(app, name):
    """In joint attention, whose text has other positions in the edit's evaluation then."""
    world = World(app, *reduced.checkpoint(name))
    longer = " ".join(["red"] * 300)
    edited = edit_by_words(world, world.model, f"brown -> {longer}: 1")
    _fetches(world, edited, 1)  # where text and image stand is looked up once
    few, many = (Counter(_fetches(world, edited, steps)) for steps in (1, 3))
    added = many - few
    assert added.pop("levels_of", 0) <= 2
    assert not added


def test_no_node_is_forgotten(app):
    assert {node for node, _ in CHANGERS.values()} | {*LORA_NODES} == of_menu(app)


def test_places_in_a_schedule_are_looked_up_on_the_cpu(demo):
    """Its tables lie where the model is; they are fetched once, and the places are the same."""
    rescale = demo.app.module("nodes.conditioning.noise_rescale_comfy")
    sampling = copy.deepcopy(demo.model.get_model_object("model_sampling"))
    expected = [rescale.noise_fraction(sampling, sigma) for sigma in (0.3, 4.0)]
    with SpyDevice() as spy:
        sampling.to(spy.device)
        found = [rescale.noise_fraction(sampling, sigma) for sigma in (0.3, 4.0)]
        tables = len(list(sampling.buffers()))
    assert found == expected and 0 < expected[0] < expected[1] < 1
    assert spy.moves == {"there": tables, "back": tables}


@pytest.mark.parametrize(
    "wait",
    [
        lambda tensor: float(tensor[0]),
        lambda tensor: tensor.tolist(),
        lambda tensor: bool(tensor[0]),
        lambda tensor: tensor[0] == 1 and None,
        lambda tensor: torch.equal(tensor, tensor),
        lambda tensor: tensor.nonzero(),
        lambda tensor: tensor[tensor > 0],
        lambda tensor: torch.where(tensor > 0),
        lambda tensor: range(int(tensor[0])),
        lambda tensor: 1.0 in tensor,
    ],
)
def test_a_fetch_is_counted(wait):
    with Fetches(Path(__file__).parent) as counted:
        wait(torch.ones(2))
    assert counted.functions


def test_what_stays_on_the_device_is_no_fetch():
    with Fetches(Path(__file__).parent) as counted:
        tensor = torch.ones(2)
        torch.where(tensor > 0, tensor, 0.0)[torch.tensor([0, 1])].sum()
    assert not counted.functions


class Operations(TorchDispatchMode):
    """Counts the calls of operators."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += 1
        return operation(*args, **(kwargs or {}))


def _operations_of_a_step(demo, model):
    """Of a step in the middle of a run, with two images: what is made once a run is no part of
    it.
    """
    counts = []
    (positive,) = demo.app.run("CLIPTextEncode", clip=demo.clip, text=PROMPT)
    for steps in (1, 2, 4):  # the first one loads the model
        with Operations() as counted:
            demo.sample(model, demo.latent(2, 64, 64), steps=steps, positive=positive)
        counts.append(counted.count)
    return (counts[2] - counts[1]) / 2


def test_an_edit_adds_few_operators(demo):
    """At most 15 % of a step's: the text to move toward is attended to beside the call's own
    rows.
    """
    plain = _operations_of_a_step(demo, demo.model)
    edited = _operations_of_a_step(demo, edit_by_words(demo, demo.model))
    assert plain < edited <= 1.15 * plain, f"{edited / plain - 1:.1%}"
