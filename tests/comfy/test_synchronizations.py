"""How often a sampling run waits for the device because of this pack: counted on the CPU, where it costs nothing."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from spy_device import SpyDevice
from tapping import World
from torch.overrides import TorchFunctionMode

#: What fetches numbers from a device, and so waits for it.
_FETCHES = {
    torch.Tensor.__float__,
    torch.Tensor.__int__,
    torch.Tensor.__bool__,
    torch.Tensor.item,
    torch.Tensor.tolist,
}


class Fetches(TorchFunctionMode):
    """Notes the functions in files of a folder that fetch numbers from tensors."""

    def __init__(self, folder):
        super().__init__()
        self._folder, self.functions = str(folder), []

    def __torch_function__(self, operation, types, args=(), kwargs=None):
        caller = sys._getframe(1)
        if operation in _FETCHES and caller.f_code.co_filename.startswith(self._folder):
            self.functions.append(caller.f_code.co_name)
        return operation(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def _lora(demo, model):
    space, _ = demo.app.run("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")
    intervals, writer = (demo.app.module(f"nodes.weights.{name}") for name in ("lora_intervals_comfy", "lora_writer"))
    point = demo.app.module("nodes.weights.space").Point(space, space.coefficients[0])
    return intervals.apply_lora(model, writer.to_tensors(point.layers()), 0.5, 0.2, 0.9)


def _scaled(demo, model):
    factors = demo.app.module("nodes.neurons.neuron_factors_comfy")
    named = model.model.diffusion_model.named_modules()
    found = {name: torch.full((one.out_features,), 0.5) for name, one in named if name.endswith("attn2.to_v")}
    return factors.with_scaled(model, found, (10.0, 0.1), False)


def _scaled_by_prompt(demo, model):
    factors = demo.app.module("nodes.neurons.neuron_factors_comfy")
    named = model.model.diffusion_model.named_modules()
    found = {name: torch.zeros(one.out_features) for name, one in named if name.endswith("attn2.to_v")}
    return factors.with_scaled_by_prompt(model, [(demo.negative[0][0], found)], (10.0, 0.1), True)


def _gated(demo, model):
    schedule = demo.app.module("nodes.conditioning.metadata_schedule").GateSchedule(
        curve="cosine", exponent=1.0, fields="all", reference_width=0, reference_height=0, mode="value", apply_to="both"
    )
    return demo.app.module("nodes.conditioning.metadata_schedule_comfy").gated(model, schedule, False)


def _recorded(demo, model):
    return demo.record(model=model)[0]


PATCHES = (_lora, _scaled, _scaled_by_prompt, _gated, _recorded)


def _fetches(demo, model, steps):
    """But for places in the table of sigmas, which are computed from a number, and timesteps once the run is over."""
    folder = Path(demo.app.module("nodes.host.evaluate").__file__).parents[1]
    with Fetches(folder) as counted:
        demo.sample(model, demo.latent(1, 64, 64), steps=steps)
    return [name for name in counted.functions if name not in ("noise_fraction", "timestep_of")]


@pytest.mark.parametrize("order", [PATCHES, PATCHES[::-1]], ids=["forward", "backward"])
def test_noise_levels_are_fetched_once_an_evaluation(demo, order):
    """However many patches need them, and although each evaluation is of two prompts."""
    model = demo.model
    for patch in order:
        model = patch(demo, model)
    few, many = (_fetches(demo, model, steps) for steps in (1, 3))
    assert few.count("levels_of") == 1 and many.count("levels_of") == 3
    assert len(many) - len(few) == 2, "besides, nothing is fetched in every step"


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


def test_a_fetch_is_counted():
    with Fetches(Path(__file__).parent) as counted:
        assert float(torch.ones(1)) == 1.0 and torch.ones(2).tolist() == [1, 1] and bool(torch.ones(()))
    assert counted.functions == ["test_a_fetch_is_counted"] * 3
