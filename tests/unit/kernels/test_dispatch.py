"""Which backend is chosen, and what is logged about it."""

import logging
import subprocess
import sys

import kernel_inputs
import pytest
import torch
from glassbox import kernels
from glassbox.kernels import dispatch, self_check, table

F32 = torch.float32
GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(self_check, "_logged", set())
    monkeypatch.setattr(dispatch, "_chosen", None)
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)


def arguments():
    return kernel_inputs.of("low_rank_apply")


def backends(operation="low_rank_apply", device=GPU, **change):
    return list(dispatch.kernels_for(operation, kernel_inputs.of(operation) | change, device))


@pytest.fixture
def gpu(monkeypatch):
    """As on a GPU of compute capability 8.6 with Triton."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda name: object())


def test_the_cpu_runs_eager_in_silence(caplog):
    caplog.set_level(logging.DEBUG)
    assert backends(device=torch.device("cpu")) == []
    kernels.low_rank_apply(**arguments())
    assert not caplog.records


def test_triton_comes_before_cuda(gpu):
    assert backends() == ["triton", "cuda"] and backends("mean_attention") == ["triton"]
    assert backends("best_match") == []


def test_a_setting_chooses_one_backend(gpu):
    for name, found in (
        ("eager", []),
        ("triton", ["triton"]),
        ("cuda", ["cuda"]),
        ("auto", ["triton", "cuda"]),
    ):
        kernels.use(name)
        assert backends() == found


def test_a_compiler_sees_eager(gpu, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert backends() == []


def test_the_variable_and_the_setting(monkeypatch):
    assert dispatch.setting() == "auto"
    monkeypatch.setenv(dispatch.VARIABLE, " Eager ")
    assert dispatch.setting() == "eager"
    assert kernels.use("triton") is None and dispatch.setting() == "triton"
    assert kernels.use(None) == "triton" and dispatch.setting() == "eager"
    with pytest.raises(ValueError, match="no backend hip: choose one of auto, eager, triton, cuda"):
        kernels.use("hip")


def test_a_wrong_variable_is_logged_once(monkeypatch, caplog):
    monkeypatch.setenv(dispatch.VARIABLE, "fast")
    assert [dispatch.setting(), dispatch.setting()] == ["auto", "auto"]
    assert [record.message for record in caplog.records] == [
        "GLASSBOX_KERNELS is fast, which is none of auto, eager, triton, cuda: auto is used."
    ]


@pytest.mark.parametrize(
    ("platform", "package"), [("linux", "triton"), ("win32", "triton-windows")]
)
def test_without_triton_the_line_names_the_package(gpu, monkeypatch, caplog, platform, package):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(dispatch.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(dispatch.sys, "platform", platform)
    assert [backends() for _ in range(2)] == [["cuda"]] * 2
    (record,) = caplog.records
    assert record.message.endswith(
        f"low_rank_apply is left out: Triton is not installed (pip install {package})."
    )


def test_a_forced_backend_that_does_not_fit_is_logged(gpu, caplog):
    kernels.use("triton")
    assert backends(weight=torch.ones(70, 6).double()) == []
    assert [record.message for record in caplog.records] == [
        "low_rank_apply runs in eager PyTorch: weight is float64."
    ]


def test_a_gpu_that_triton_does_not_support(gpu, monkeypatch):
    for capability, found in (
        ((7, 5), ["cuda"]),
        ((8, 0), ["triton", "cuda"]),
        ((12, 0), ["triton", "cuda"]),
    ):
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda device, found=capability: found
        )
        assert backends() == found


def test_cuda_sources_are_for_nvidia(gpu, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert backends() == ["triton"]


def test_every_public_function_is_an_operation():
    public = {
        name
        for name, value in vars(kernels).items()
        if callable(value) and not name.startswith("_")
    }
    assert public - {"use"} == set(table.TABLE)


def test_every_operation_works_with_triton_hidden():
    """A process that cannot import Triton, as on Windows and macOS."""
    code = (
        "import sys\nsys.modules['triton'] = None\n"
        "import repository; repository.load_pack()\n"
        "import torch; from glassbox import kernels\n"
        "import kernel_inputs; from glassbox.kernels.table import TABLE\n"
        "for name in TABLE: getattr(kernels, name)(**kernel_inputs.of(name))\n"
        "print([name for name in sys.modules if name.startswith('glassbox.kernels.triton')])"
    )
    helpers = str(kernel_inputs.__file__).rsplit("kernel_inputs", 1)[0]
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {helpers!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.double(), "weight is float64"),
        (lambda t: t[:0], "weight is empty"),
        (lambda t: t.T.contiguous().T, "weight is not contiguous"),
        (lambda t: t.clone().requires_grad_(), "weight needs a gradient"),
        (
            lambda t: t.as_subclass(type("Quantized", (torch.Tensor,), {})),
            "weight is a Quantized and not a plain",
        ),
    ],
)
def test_constraints_name_what_does_not_fit(change, reason):
    given = arguments()
    for kernel in table.TABLE["low_rank_apply"].kernels.values():
        assert table.unfit(kernel, given | {"weight": change(given["weight"])}).startswith(reason)


def test_sizes_devices_and_stray_tensors_that_a_kernel_does_not_take():
    cost = table.TABLE["assignment_cost"].kernels["triton"]
    given = kernel_inputs.of("assignment_cost")
    assert table.unfit(cost, given) is None
    small = given | {"data": given["data"][:4]}
    assert table.unfit(cost, small) == "data has 4 along dimension 0, outside 64 to 32768"
    assert (
        table.unfit(cost, given | {"data": given["data"].to("meta")})
        == "its tensors lie on several devices"
    )
    columns = given | {"data": torch.ones(5, 70).T}
    assert table.unfit(cost, columns) == "data is not contiguous along its last dimension"
    change = table.TABLE["low_rank_apply"].kernels["triton"]
    assert (
        table.unfit(change, arguments() | {"strength": torch.tensor(0.7)}) == "strength is a tensor"
    )
    assert table.unfit(change, arguments() | {"up": torch.ones(70, 2, device="meta")}) is None
    point = kernel_inputs.flat_weights(torch.float16, 9, 70)
    several = point | {"coefficients": torch.ones(2, 9)}
    for kernel in table.TABLE["flat_weights"].kernels.values():
        assert table.unfit(kernel, point) is None
        assert table.unfit(kernel, several) == "coefficients has 2 dimensions"
    of_one_type = kernel_inputs.low_rank_apply(F32, 70, 6, 2, factors=F32)
    assert (
        table.unfit(change, of_one_type)
        == "weight, up, down are of one type, which PyTorch does in one pass"
    )


def test_gradients_pass():
    weight, up = torch.ones(3, 4), torch.ones(3, 1, requires_grad=True)
    kernels.low_rank_apply(weight, up, torch.ones(1, 4), 2.0).sum().backward()
    assert up.grad.tolist() == [[8.0]] * 3
