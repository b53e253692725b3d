"""Copies to the CPU while a network runs, on a stand-in for a GPU: asynchronous, at most one wait
per evaluation.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from glassbox.nodes.activations.activation_spec import ActivationSpec, Attention, Kind
from glassbox.nodes.activations.recorder import Recorder
from glassbox.nodes.activations.tap import CallTap, TapSettings, merge
from glassbox.nodes.common.network_call import WHOLE, Call, Part
from torch.overrides import TorchFunctionMode

SPECS = [
    ActivationSpec(id="a-out", module="a", kind=Kind.SPATIAL, channels=3, scale=1),
    ActivationSpec(
        id="b-self-map",
        module="q",
        kind=Kind.MAP,
        channels=None,
        scale=1,
        attention=Attention(query="q", key="k", heads=2),
    ),
]
BLOCKING = [
    torch.Tensor.cpu,
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.__float__,
    torch.Tensor.__bool__,
]


class Device(TorchFunctionMode):
    """Every tensor that is not pinned is on CUDA. Copies are done when somebody waits, and no other
    call waits.
    """

    def __init__(self):
        super().__init__()
        self.waits, self._queue, self._pinned = 0, [], set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func == torch.Tensor.is_cuda.__get__:
            return args[0].untyped_storage().data_ptr() not in self._pinned
        if func is torch.empty and kwargs.pop("pin_memory", False):
            made = func(*args, **kwargs)
            self._pinned.add(made.untyped_storage().data_ptr())
            return made.fill_(torch.nan)
        if func is torch.Tensor.copy_ and kwargs.get("non_blocking"):
            assert (
                args[0].dtype == args[1].dtype and args[1].is_contiguous()
            )  # else CUDA copies with a wait
            self._queue.append((args[0], args[1].clone()))
            return args[0]
        assert func not in BLOCKING and not (func is torch.Tensor.to and "cpu" in args), func
        return func(*args, **kwargs)

    def finish(self):
        for target, source in self._queue:
            target.copy_(source)
        self._queue = []

    def event(self):
        def synchronize():
            self.waits += 1
            self.finish()

        return SimpleNamespace(
            record=lambda _stream: None, query=lambda: not self._queue, synchronize=synchronize
        )


@pytest.fixture
def device(monkeypatch):
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    return device


def values(seed, rows):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"": (rows, 4, 2, 3), "a": (rows, 3, 2, 3), "q": (rows, 6, 8), "k": (rows, 6, 8)}
    return {path: torch.randn(shape, generator=generator) for path, shape in shapes.items()}


def call_of(*roles, images=2):
    parts = [
        Part(role=role, rows=slice(images * row, images * (row + 1)), area=WHOLE)
        for row, role in enumerate(roles)
    ]
    return Call(
        network=torch.nn.Identity(),
        parts=tuple(parts),
        rows=images * len(roles),
        sigma=1.0,
        schedule=(),
    )


def feed(receivers, found):
    outputs, inputs, _ = receivers
    for path, receive in (*inputs, *outputs):
        receive(found[path])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("together", [True, False])
def test_one_wait_per_evaluation_and_the_same_values(device, dtype, together):
    called = (
        [call_of("positive", "negative")]
        if together
        else [call_of("positive"), call_of("negative")]
    )
    found = [values(seed, call.rows) for seed, call in enumerate(called)]

    def run():
        calls = [
            CallTap(SPECS, TapSettings(unconditional=True, dtype=dtype), call) for call in called
        ]
        for call, given in zip(calls, found, strict=True):
            feed(call.receivers(), given)
        return merge(calls, SPECS)

    expected, rows = run()
    with device:
        tensors, same_rows = run()
    assert device.waits == 1 and rows == same_rows
    assert all(torch.equal(tensors[id_], expected[id_]) for id_ in expected)


def test_a_recorder_waits_for_no_copy_when_the_next_step_has_begun(device):
    """The noise level of a step is read from the device, which is a wait that a sampler has
    anyway.
    """
    network = torch.nn.ModuleDict({path: torch.nn.Identity() for path in "aqk"})
    recorder = Recorder(
        SPECS, TapSettings(dtype=torch.float32), lambda step, steps: True, lambda sigma: 100 * sigma
    )
    steps = [values(seed, 1) for seed in range(3)]
    with device:
        recorder.started()
        for step, given in enumerate(steps):
            device.finish()
            recorder.evaluating(
                SimpleNamespace(sigma=3.0 - step, step=step, steps=3, on_schedule=True, main=True)
            )
            feed(recorder.calling(replace(call_of("positive", images=1), network=network)), given)
            recorder.evaluated()
        device.finish()
    latent = torch.zeros(1, 4, 2, 3)
    recorder.finished(latent)
    run = recorder.run_of(latent)
    assert device.waits == 0 and run.recorded == (0, 1, 2)
    for snapshot, given in zip(run.snapshots, steps, strict=True):
        assert torch.equal(snapshot.activations.tensors["a-out"], given["a"])
        assert snapshot.activations.timestep == 100 * snapshot.activations.sigma
