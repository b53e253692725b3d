"""Which backend is chosen, what is said about it, and how a kernel proves itself."""

import json
import logging
import subprocess
import sys
import types

import kernel_inputs
import pytest
import torch
from glassbox import kernels
from glassbox.kernels import dispatch, proof, table

F32 = torch.float32


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(dispatch, "_told", set())
    monkeypatch.setattr(dispatch, "_chosen", None)
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)


@pytest.fixture
def memory(monkeypatch, tmp_path):
    """An empty memory of verdicts, with one machine's name for all."""
    monkeypatch.setattr(proof, "_verdicts", {})
    monkeypatch.setattr(proof, "machine_name", lambda device: "a GPU")
    monkeypatch.setattr(proof, "memory_file", lambda: tmp_path / "glassbox" / "kernels.json")
    return tmp_path / "glassbox" / "kernels.json"


def contenders(monkeypatch, triton, eager=None):
    """Other functions in the place of both backends."""
    eager = eager or dispatch.function("eager", "pair_moments")
    monkeypatch.setattr(dispatch, "function", lambda backend, name: triton if backend == "triton" else eager)


def arguments():
    return kernel_inputs.pair_moments(F32, 4, 100)


def test_the_cpu_runs_eager_in_silence(caplog):
    caplog.set_level(logging.DEBUG)
    assert dispatch.backend("pair_moments", arguments()) == "eager"
    assert not caplog.records


def test_a_compiler_sees_eager(monkeypatch):
    kernels.use("triton")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert dispatch.backend("pair_moments", arguments()) == "eager"


def test_the_variable_and_the_setting(monkeypatch):
    assert dispatch.setting() == "auto"
    monkeypatch.setenv(dispatch.VARIABLE, " Eager ")
    assert dispatch.setting() == "eager"
    assert kernels.use("triton") is None and dispatch.setting() == "triton"
    assert kernels.use(None) == "triton" and dispatch.setting() == "eager"
    with pytest.raises(ValueError, match="no backend cuda: choose one of auto, eager, triton"):
        kernels.use("cuda")


def test_a_wrong_variable_is_told_once(monkeypatch, caplog):
    monkeypatch.setenv(dispatch.VARIABLE, "fast")
    assert [dispatch.setting(), dispatch.setting()] == ["auto", "auto"]
    assert [record.message for record in caplog.records] == [
        "GLASSBOX_KERNELS is fast, which is none of auto, eager, triton: auto it is."]  # fmt: skip


def test_without_triton_one_line_and_the_same_result(monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "_triton_is_there", lambda: False)
    kernels.use("triton")
    for _ in range(2):
        found = kernels.pair_moments(**arguments())
    assert all(map(torch.equal, found, dispatch.function("eager", "pair_moments")(**arguments())))
    assert [record.message for record in caplog.records] == [
        "pair_moments runs in eager PyTorch: Triton is not installed."]  # fmt: skip


def test_every_public_function_is_an_operation():
    public = {name for name, value in vars(kernels).items() if callable(value) and not name.startswith("_")}
    assert public - {"use"} == set(table.TABLE)


def test_every_operation_works_with_triton_hidden():
    """A process that cannot import Triton, as on Windows and macOS."""
    code = (
        "import sys\nsys.modules['triton'] = None\n"
        "import repository; repository.load_pack()\n"
        "import torch; from glassbox import kernels\n"
        "import kernel_inputs; from glassbox.kernels.table import TABLE\n"
        "kernels.use('triton')\n"
        "for name in TABLE: getattr(kernels, name)(**kernel_inputs.of(name))\n"
        "print([name for name in sys.modules if name.startswith('glassbox.kernels.triton')])"
    )
    helpers = str(kernel_inputs.__file__).rsplit("kernel_inputs", 1)[0]
    run = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {helpers!r})\n{code}"],
                         capture_output=True, text=True, timeout=300)  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.double(), "data is float64"),
        (lambda t: t[:0], "data is empty"),
        (lambda t: t.T.contiguous().T, "data is not contiguous along its last dimension"),
        (lambda t: t.clone().requires_grad_(), "data wants a gradient"),
        (lambda t: t.as_subclass(type("Quantised", (torch.Tensor,), {})), "data is a Quantised and not a plain tensor"),
        (lambda t: t.to("meta"), "its tensors lie on several devices"),
        (lambda t: torch.zeros(1, 1).expand(1, 2**28 + 1), "data has 268435457 along dimension 1, outside 1 to"),
    ],
)
def test_what_a_kernel_does_not_take(change, reason):
    arguments_ = arguments() | {"data": change(arguments()["data"])}
    if arguments_["data"].stride(-1) == 0:
        arguments_["data"] = torch.empty_strided((1, 2**28 + 1), (1, 1), device="meta")
        arguments_["noise"] = arguments_["data"]
    assert table.unfit("pair_moments", arguments_).startswith(reason)


def test_a_tensor_where_a_number_is_expected():
    arguments_ = kernel_inputs.low_rank_apply(F32, 3, 4, 1) | {"strength": torch.tensor(0.7)}
    assert table.unfit("low_rank_apply", arguments_) == "strength is a tensor"


def test_eager_is_the_reference_in_full_precision():
    before = torch.get_float32_matmul_precision()
    seen = []

    def eager(data, noise):
        seen.append(torch.get_float32_matmul_precision())
        return (data,)

    torch.set_float32_matmul_precision("medium")
    try:
        assert proof._error("pair_moments", arguments(), eager, lambda data, noise: (data,)) is None
        assert seen == ["highest"] and torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_full_precision_by_the_newer_name():
    """Once it is used the older one raises, in a process where another pack allows TF32."""
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this PyTorch has the older name alone")
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        with proof._full_precision():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


def test_gradients_pass_without_triton():
    weight, up = torch.ones(3, 4), torch.ones(3, 1, requires_grad=True)
    kernels.low_rank_apply(weight, up, torch.ones(1, 4), 2.0).sum().backward()
    assert up.grad.tolist() == [[8.0]] * 3
    with torch.no_grad():
        fits = {"weight": weight, "up": up, "down": torch.ones(1, 4), "strength": 2.0}
        assert table.unfit("low_rank_apply", fits) is None


def test_the_winner_is_remembered(monkeypatch, memory):
    calls = []

    def eager(data, noise):
        calls.append(len(data))
        sum(range(200_000))
        return data.sum(1), data.sum(1), data.sum(1)

    contenders(monkeypatch, lambda data, noise: (data.sum(1),) * 3, eager)
    wide = kernel_inputs.pair_moments(F32, 40, 100)
    assert proof.winner("pair_moments", wide) == "triton"
    assert calls[0] == 16 and set(calls[1:]) == {40}  # checked on a slice, timed on the whole
    seen = len(calls)
    assert proof.winner("pair_moments", kernel_inputs.pair_moments(F32, 33, 90)) == "triton" and len(calls) == seen
    (verdict,) = json.loads(memory.read_text())["a GPU"].values()
    assert verdict["why"] == "right and faster" and verdict["triton_ms"] < verdict["eager_ms"]
    monkeypatch.setattr(proof, "_verdicts", {})
    contenders(monkeypatch, None, None)
    assert proof.winner("pair_moments", wide) == "triton"


@pytest.fixture
def clock(monkeypatch):
    """Milliseconds that each backend takes, whatever it really takes."""
    takes = {"eager": 2.0, "triton": 1.0}

    def one(function, arguments, device):
        (backend,) = (name for name in takes if dispatch.function(name, clocked[0]) is function)
        return takes[backend]

    def of(operation, **changes):
        clocked[:] = [operation]
        takes.update(changes)

    clocked = []
    monkeypatch.setattr(proof, "_one", one)
    return of


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("operation", sorted(table.TABLE))
def test_every_kernel_proves_itself(memory, clock, operation):
    """Each in Triton's interpreter: right against eager, faster by a clock of our own, and remembered on disk."""
    clock(operation)
    assert proof.winner(operation, kernel_inputs.of(operation)) == "triton"
    (verdict,) = json.loads(memory.read_text())["a GPU"].values()
    assert verdict == {"backend": "triton", "why": "right and faster", "eager_ms": 2.0, "triton_ms": 1.0}


@pytest.mark.usefixtures("interpreter")
def test_a_verdict_holds_for_one_machine(monkeypatch, memory, clock, caplog):
    """Another GPU, driver or version of the kernels is asked anew, and the first one's verdict stays."""
    caplog.set_level(logging.INFO)
    clock("blend")
    arguments_ = kernel_inputs.of("blend")
    assert proof.winner("blend", arguments_) == "triton"
    clock("blend", triton=3.0)
    assert proof.winner("blend", arguments_) == "triton" and not caplog.records  # it is not timed again
    monkeypatch.setattr(proof, "machine_name", lambda device: "a GPU, driver 2")
    assert proof.winner("blend", arguments_) == "eager"
    (record,) = caplog.records
    assert record.message.endswith("set aside: it is not faster here, 3.000 ms against 2.000 ms in eager PyTorch.")
    remembered = json.loads(memory.read_text())
    assert {name: [one["backend"] for one in verdicts.values()] for name, verdicts in remembered.items()} == {
        "a GPU": ["triton"], "a GPU, driver 2": ["eager"]}  # fmt: skip


def wrong(data, noise):
    return (data.sum(1) + 1,) * 3


def broken(data, noise):
    raise RuntimeError("PTX was compiled with an unsupported toolchain\nand more")


def slow(data, noise):
    sum(range(300_000))
    return dispatch_eager(data, noise)


dispatch_eager = dispatch.function("eager", "pair_moments")


@pytest.mark.parametrize(
    ("triton", "why"),
    [(wrong, "it errs by"), (broken, "it does not run here: RuntimeError: PTX was compiled with an unsupported"),
     (slow, "it is not faster here"), (lambda data, noise: (data.sum(1)[:2],) * 3, "torch.float32 (2,) instead of")],
)  # fmt: skip
def test_a_kernel_is_set_aside(monkeypatch, memory, caplog, triton, why):
    caplog.set_level(logging.INFO)
    contenders(monkeypatch, triton)
    assert [proof.winner("pair_moments", arguments()) for _ in range(2)] == ["eager", "eager"]
    (record,) = caplog.records
    assert record.message.startswith(f"The Triton kernel of pair_moments is set aside: {why}")


def test_a_winner_that_fails_later_gives_way(monkeypatch, memory, caplog):
    caplog.set_level(logging.INFO)
    original = dispatch.function
    contenders(monkeypatch, broken)
    monkeypatch.setattr(dispatch, "backend", lambda operation, arguments: "triton")
    found = kernels.pair_moments(**arguments())
    assert all(map(torch.equal, found, original("eager", "pair_moments")(**arguments())))
    assert proof.winner("pair_moments", arguments()) == "eager" and len(caplog.records) == 1
    kernels.use("triton")
    with pytest.raises(RuntimeError, match="unsupported toolchain"):
        kernels.pair_moments(**arguments())


@pytest.mark.parametrize("rows", [0, 16])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError(), RuntimeError("Triton Error [CUDA]: out of memory")])
def test_no_memory_proves_nothing(monkeypatch, memory, error, rows):
    """Neither on the slice nor on the whole."""

    def full(data, noise):
        if len(data) > rows:
            raise error
        return dispatch_eager(data, noise)

    contenders(monkeypatch, full)
    assert proof.winner("pair_moments", kernel_inputs.pair_moments(F32, 40, 100)) == "eager"
    assert not memory.exists()


def test_a_full_gpu_refutes_no_winner(monkeypatch, memory):
    def full(data, noise):
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    contenders(monkeypatch, full)
    monkeypatch.setattr(dispatch, "backend", lambda operation, arguments: "triton")
    assert all(map(torch.equal, kernels.pair_moments(**arguments()), dispatch_eager(**arguments())))
    assert not memory.exists()


def test_a_kernel_that_fails_on_the_whole_input_alone(monkeypatch, memory, caplog):
    caplog.set_level(logging.INFO)

    def fails(data, noise):
        if len(data) > 16:
            raise RuntimeError("invalid argument: grid")
        return dispatch_eager(data, noise)

    contenders(monkeypatch, fails)
    assert proof.winner("pair_moments", kernel_inputs.pair_moments(F32, 40, 100)) == "eager"
    (record,) = caplog.records
    assert record.message.endswith("set aside: it does not run here: RuntimeError: invalid argument: grid.")


def test_a_fault_while_it_runs_is_the_kernels(monkeypatch, memory):
    """A launch returns before the kernel has run; its fault must not be found by whoever comes next."""

    def fault(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(proof, "_device", lambda arguments: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "synchronize", fault)
    contenders(monkeypatch, dispatch_eager)
    assert proof.winner("pair_moments", arguments()) == "eager"
    assert "illegal memory access" in memory.read_text()


def test_a_gap_may_be_used(monkeypatch):
    """A total may lie above eager's by the gap that was asked for, and by no more."""
    cost = kernel_inputs.gaussian(9, 9)
    eager = dispatch.function("eager", "least_assignment")

    def above(cost, gap):
        columns, total = eager(cost=cost)
        return columns, total + 0.9

    assert proof._error("least_assignment", {"cost": cost, "gap": 1.0}, eager, above) is None
    assert proof._error("least_assignment", {"cost": cost, "gap": 0.5}, eager, above).startswith("it errs by")
    classes = {proof.shape_class("least_assignment", {"cost": cost, "gap": gap}) for gap in (0, 0.0, 0.5, 1.0)}
    assert len(classes) == 3


def test_a_module_that_cannot_be_imported(monkeypatch, memory):
    original = dispatch.function

    def function(backend, name):
        if backend == "triton":
            raise ImportError("undefined symbol")
        return original(backend, name)

    monkeypatch.setattr(dispatch, "function", function)
    assert proof.winner("pair_moments", arguments()) == "eager"
    assert "ImportError: undefined symbol" in memory.read_text()


@pytest.mark.parametrize("content", ["{", "[]", '{"a GPU": {}}', '{"a GPU": 5}', '{"a GPU": {"CLASS": 5}}',
                                     '{"a GPU": {"CLASS": {"backend": "x"}}}'])  # fmt: skip
def test_a_memory_that_is_damaged(monkeypatch, memory, content):
    memory.parent.mkdir()
    memory.write_text(content.replace("CLASS", proof.shape_class("pair_moments", arguments())))
    contenders(monkeypatch, wrong)
    assert proof.winner("pair_moments", arguments()) == "eager"
    (verdict,) = json.loads(memory.read_text())["a GPU"].values()
    assert verdict["why"].startswith("it errs by")


def test_without_a_home_verdicts_hold_for_the_process(monkeypatch, memory):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(proof, "memory_file", homeless)
    contenders(monkeypatch, wrong)
    assert [proof.winner("pair_moments", arguments()) for _ in range(2)] == ["eager", "eager"]


def test_triton_goes_by_several_names(monkeypatch):
    """Its package for Windows is called triton-windows; the module is the same."""
    name = proof.machine_name.__wrapped__
    monkeypatch.setitem(sys.modules, "triton", types.SimpleNamespace(__version__="3.5.1.post2"))
    assert "triton 3.5.1.post2, " in name(torch.device("cpu"))
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "triton unknown, " in name(torch.device("cpu"))


def test_a_gpu_that_triton_does_not_support(monkeypatch):
    monkeypatch.setattr(dispatch, "_triton_is_there", lambda: True)
    for capability, fits in (((7, 5), False), ((8, 0), True), ((12, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert (dispatch._cannot_run(torch.device("cuda")) is None) == fits


def test_a_folder_that_cannot_be_written(monkeypatch, memory):
    memory.parent.write_text("a file where the folder would be")
    contenders(monkeypatch, wrong)
    assert proof.winner("pair_moments", arguments()) == "eager"


def test_classes_of_shapes():
    def name(rows, size, dtype=F32):
        return proof.shape_class("pair_moments", kernel_inputs.pair_moments(dtype, rows, size))

    assert name(64, 16384) == name(100, 20000) != name(128, 16384)
    assert name(64, 16384) != name(64, 16384, torch.bfloat16)
    attention = kernel_inputs.mean_attention(F32, 1, 4, 4, 2, 8)
    assert "chosen=None" in proof.shape_class("mean_attention", attention)
    assert "chosen=1 bits long" in proof.shape_class("mean_attention", attention | {"chosen": [0]})


def test_slices_fit_their_operations():
    for operation in table.TABLE:
        arguments_ = kernel_inputs.of(operation)
        eager = dispatch.function("eager", operation)
        assert proof._error(operation, arguments_, eager, eager) is None


def test_a_constant_batch_does_not_condemn_the_cost():
    """Centring leaves nothing but rounding there, and that may differ."""
    same = kernel_inputs.gaussian(1, 4096).expand(8, 4096)
    arguments_ = {"data": same, "noise": same.clone()}
    found, wanted = torch.full((8, 8), 1e-4), torch.full((8, 8), -1e-4)
    assert proof.disagreement(found, wanted, 1e-6)
    assert proof.disagreement(found, wanted, 1e-6, proof.scale("assignment_cost", arguments_)) is None


@pytest.mark.parametrize(
    ("found", "wanted", "agree"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], True),
        ([1.0, float("inf")], [1.0, float("nan")], True),
        ([1.0, 2.0], [1.0, float("nan")], False),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([0.0, 0.0], [0.0, 0.0], True),
    ],
)
def test_disagreement(found, wanted, agree):
    assert (proof.disagreement(torch.tensor(found), torch.tensor(wanted), 1e-3) is None) == agree


def test_a_few_indices_may_differ():
    wanted = torch.arange(1000)
    near, far = wanted.clone(), wanted.flip(0)
    near[5] = 6
    assert proof.disagreement(near, wanted, 0) is None
    assert proof.disagreement(far, wanted, 0) == "100.0% of the indices differ"


@pytest.mark.parametrize(("platform", "variable"), [("win32", "LOCALAPPDATA"), ("linux", "XDG_CACHE_HOME")])
def test_where_verdicts_are_remembered(monkeypatch, tmp_path, platform, variable):
    monkeypatch.setattr(proof, "sys", types.SimpleNamespace(platform=platform))
    monkeypatch.setenv(variable, str(tmp_path))
    assert proof.memory_file() == tmp_path / "glassbox" / "kernels.json"
