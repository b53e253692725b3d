"""What trainings hold: counted on the meta device, and requested from ComfyUI before it is held."""

import types
from pathlib import Path

import kept_activations
import pytest
import resumable
import torch

_CARD = 12e9
_LATENT = (4, 128, 128)


@pytest.fixture(scope="module")
def sdxl(app):
    """SDXL's network in bf16 on the meta device, and a function that evaluates rows of it for a
    text's gradient.
    """
    import comfy.ops
    from comfy.ldm.modules import attention
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    from benchmarks.conditioning.__main__ import _sdxl

    given = {"dtype": torch.bfloat16, "device": "meta"}
    network = UNetModel(
        **_sdxl(), **given, operations=comfy.ops.disable_weight_init
    ).requires_grad_(False)

    def evaluate(rows: int) -> torch.Tensor:
        x, timesteps = torch.empty(rows, *_LATENT, **given), torch.empty(rows, **given)
        text = torch.empty(1, 77, 2048, **given, requires_grad=True)
        before = attention.optimized_attention
        attention.optimized_attention = kept_activations.fused_attention
        try:
            return network(
                x, timesteps, text.expand(rows, -1, -1), torch.empty(rows, 2816, **given)
            )
        finally:
            attention.optimized_attention = before

    return network, evaluate


@pytest.fixture
def session_of(app, monkeypatch):
    """A session of SDXL in bf16 on a card of which so many bytes are free."""
    import comfy.model_base
    import comfy.model_management as management

    trainer = app.module("nodes.host.training.trainer")
    monkeypatch.setattr(management, "pytorch_attention_flash_attention", lambda: True)
    about = {
        "memory_usage_factor": 0.8,
        "memory_usage_factor_conds": (),
        "memory_usage_shape_process": {},
    }
    about |= {"manual_cast_dtype": None, "get_dtype": lambda: torch.bfloat16}
    about |= {"get_dtype_inference": lambda: torch.bfloat16}  # of newer ComfyUI
    model = types.SimpleNamespace(**about)
    model.memory_required = types.MethodType(comfy.model_base.BaseModel.memory_required, model)

    def make(free: float, checkpointing: bool):
        monkeypatch.setattr(management, "get_free_memory", lambda device=None: free)
        session = trainer.Session.__new__(trainer.Session)
        session.device = torch.device("cuda")
        session._checkpointing = checkpointing
        session._guider = types.SimpleNamespace(inner_model=model)
        return session

    return make


def held(app, sdxl, rows: int, checkpointing: bool) -> int:
    """Bytes that rows of SDXL keep, and those that the largest block holds while it is computed
    again.
    """
    network, evaluate = sdxl
    if not checkpointing:
        kept = kept_activations.Kept(network)
        with kept.counting():
            evaluate(rows)
        return kept.bytes
    module = app.module("nodes.host.training.checkpointing")
    blocks = list(module.blocks_of(network, 1))
    largest = kept_activations.largest_block(network, blocks, lambda: evaluate(rows))
    with module.checkpointed(network, 1, in_place=False):
        return largest + kept_activations.inputs_of(network, blocks, lambda: evaluate(rows))


def test_the_audit_of_sdxl_at_its_defaults_fits_12_gb(app, sdxl, session_of):
    """Eight noise samples at 1,024 pixels, checkpointed, beside the weights in bf16."""
    network, _ = sdxl
    schema = app.classes["GBX_MemorizationAudit"].define_schema()
    defaults = {field.id: getattr(field, "default", None) for field in schema.inputs}
    assert defaults["gradient_checkpointing"] is True and defaults["precision"] == "auto"
    weights = sum(tensor.numel() * tensor.element_size() for tensor in network.parameters())
    session = session_of(_CARD - weights, checkpointing=True)
    rows = session.rows_at_once(defaults["noise_samples"], _LATENT)
    total = weights + held(app, sdxl, rows, True)
    print(
        f"{rows} rows at once: {total / 1e9:.1f} GB; 8 rows "
        f"{(weights + held(app, sdxl, 8, True)) / 1e9:.1f} GB"
    )
    assert rows >= 2 and total < _CARD


@pytest.mark.parametrize("checkpointing", [False, True])
def test_estimates_are_no_less_than_what_is_kept(app, sdxl, session_of, checkpointing):
    """So many rows as are taken at once fit, for any free memory; and no less than a third of those
    that would.
    """
    for count in (1, 2, 4):
        needed = held(app, sdxl, count, checkpointing)
        assert session_of(3 * needed, checkpointing).rows_at_once(count, _LATENT) == count
        if count > 1:
            assert session_of(0.95 * needed, checkpointing).rows_at_once(count, _LATENT) < count


def test_rows_that_do_not_fit_are_evaluated_one_by_one(session_of):
    assert session_of(0, checkpointing=True).rows_at_once(8, _LATENT) == 1


@pytest.fixture
def requests(app, tmp_path_factory, monkeypatch):
    """What ComfyUI is requested to free, in its order among other marks, as on a GPU."""
    import comfy.model_management as management

    marks = []
    monkeypatch.setattr(app.module("nodes.host.compute"), "_DEVICES", {"cpu"})
    real = management.free_memory

    def free_memory(bytes_, device, *args, **kwargs):
        marks.append(("free", bytes_))
        return real(bytes_, device, *args, **kwargs)

    monkeypatch.setattr(management, "free_memory", free_memory)
    return marks


def _nbytes(*tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def _mark_when_made(monkeypatch, kind: type, marks: list) -> list:
    """Note when the trained numbers are made, and keep them."""
    made, real = [], kind.__init__

    def begin(self, *args, **kwargs):
        marks.append(("made", kind.__name__))
        real(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(kind, "__init__", begin)
    return made


def _request_before(marks: list) -> int:
    """The bytes of the last request before the numbers were made."""
    first = next(place for place, (kind, _) in enumerate(marks) if kind == "made")
    assert first and marks[first - 1][0] == "free"
    return marks[first - 1][1]


@pytest.fixture(scope="module", autouse=True)
def files(app, tmp_path_factory):
    resumable.make_files(app, tmp_path_factory.mktemp("memory"))


def test_an_inversion_requests_its_memory_before_the_space_moves(app, monkeypatch, requests):
    inversion = app.module("nodes.weights.inversion")
    made = _mark_when_made(monkeypatch, inversion.TrainablePoint, requests)
    resumable.Queue(app, "GBX_W2WInvert").run("", monkeypatch, steps=1)
    (point,) = made
    space = point.space
    held = _nbytes(
        space.basis, space.mean, space.deviation, space.basis_scale, point.flat, point.flat
    )
    held += 4 * _nbytes(point.coefficients)
    assert _request_before(requests) >= held > 1e6
    assert inversion.point_bytes(space, 20) == held


def test_training_a_space_requests_its_memory_before_its_components_are_made(
    app, monkeypatch, requests
):
    updates = app.module("nodes.weights.learned_space").LearnedUpdates
    made = _mark_when_made(monkeypatch, updates, requests)
    resumable.Queue(app, "GBX_W2WTrainSpace").run("", monkeypatch, steps=1)
    (trained,) = made
    held = 4 * _nbytes(*trained.parameters.values())  # numbers, gradients and Adam's two moments
    assert _request_before(requests) >= held > 1e5
    members, components = trained.codes.shape
    assert updates.training_bytes(trained.layout, members, components) == held


def _unlearn(app, _monkeypatch):
    model, clip, vae = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    faces = app.run("GBX_DemoPicture", image_index=0, count=3, part="face")[0][:, ::2, ::2]
    positive = app.run("CLIPTextEncode", clip=clip, text="portrait, bald")[0]
    about = {"image": faces[:1], "surrogates": faces[1:], "prompts": "portrait", "layers": "attn2"}
    about |= {"steps": 1, "learning_rate": 0.01, "batch_size": 1, "keep": 1.0, "attack_steps": 1}
    about |= {"noise_samples": 1, "restart": 2, "rank": 2, "seed": 1}
    about |= {"sampling_steps": 1, "cfg": 3.0, "gradient_checkpointing": False, "precision": "fp32"}
    world = {"model": model, "clip": clip, "vae": vae, "positive": positive}
    app.run("GBX_AdversarialUnlearning", **world, **about)


def _queued(node: str):
    def run(app, monkeypatch):
        resumable.Queue(app, node).run("", monkeypatch, steps=1)

    return run


#: Each node that trains numbers with gradients, and what runs it for a step.
_TRAINERS = {
    "GBX_W2WInvert": _queued("GBX_W2WInvert"),
    "GBX_W2WTrainSpace": _queued("GBX_W2WTrainSpace"),
    "GBX_TrainLoraImmiscible": _queued("GBX_TrainLoraImmiscible"),
    "GBX_TrainSlider": _queued("GBX_TrainSlider"),
    "GBX_OptimizeNeuronMask": _queued("GBX_OptimizeNeuronMask"),
    "GBX_AdversarialUnlearning": _unlearn,
}


@pytest.mark.parametrize("node", _TRAINERS)
def test_each_trainer_requests_what_it_holds_before_its_first_step(
    app, node, monkeypatch, requests
):
    """At least what the optimizer has of its numbers after the step: themselves, gradients and
    two moments.
    """
    trainer = app.module("nodes.host.training.trainer")
    real_run, real_step = trainer.run, torch.optim.Adam.step
    held = []

    def run(*args, **kwargs):
        requests.append(("run", 0))
        return real_run(*args, **kwargs)

    def step(self, *args, **kwargs):
        numbers = [number for group in self.param_groups for number in group["params"]]
        held.append(4 * _nbytes(*numbers))
        requests.append(("step", 0))
        return real_step(self, *args, **kwargs)

    compute = app.module("nodes.host.compute")
    needs = []
    real_device = compute.compute_device

    def compute_device(*tensors, needed=0):
        needs.append(needed)
        requests.append(("needs", needed))
        return real_device(*tensors, needed=needed)

    monkeypatch.setattr(compute, "compute_device", compute_device)
    monkeypatch.setattr(trainer, "run", run)
    monkeypatch.setattr(torch.optim.Adam, "step", step)
    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    _TRAINERS[node](app, monkeypatch)
    names = [name for name, _ in requests]
    assert needs and held, "the node neither requests memory nor trains with Adam"
    assert names.index("needs") < names.index("run") < names.index("step")
    assert 0 < max(held) <= needs[0]


def test_no_trainer_is_forgotten(app):
    """Files that train numbers of their own request memory; what optimizes one embedding need
    not.
    """
    folder = Path(app.module("nodes.menu").__file__).parent
    training = {
        path.name for path in folder.rglob("*.py") if "trainer.run(" in path.read_text("utf-8")
    }
    requesting = {
        path.name
        for path in folder.rglob("*.py")
        if "request_for_training(" in path.read_text("utf-8") and path.name != "compute.py"
    }
    # Optimize Neuron Mask and Adversarial Unlearning run the trainer through these sessions.
    sessions = {"neuron_attribution_comfy.py", "embedding_session_comfy.py"}
    beside = {"learned_factors_comfy.py", "nodes_mitigations.py"}
    assert training - sessions == requesting - beside and beside <= requesting
    assert len(_TRAINERS) == len(requesting)
