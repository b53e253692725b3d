"""ComfyUI's Stop: where the pack looks at it, and that a node ends there. How long it waits:
`run.py fuzz --stop`.
"""

import threading

import numpy as np
import pytest
import torch


@pytest.fixture
def management(app):
    from comfy import model_management

    yield model_management
    model_management.interrupt_current_processing(False)


@pytest.fixture
def progress(app):
    return app.module("nodes.host.progress")


def test_stop_comes_before_the_next_operation(management, progress):
    done = []
    with pytest.raises(management.InterruptProcessingException), progress.stoppable():
        done.append(torch.zeros(2) + 1)
        management.interrupt_current_processing()
        done.append(torch.zeros(2))
    assert len(done) == 1
    assert torch.equal(torch.ones(2).add(1), torch.full((2,), 2.0))  # nothing is left behind


def test_stop_comes_while_a_long_operation_runs(management, progress, monkeypatch):
    """The eigenvectors of a large matrix are one call of seconds."""
    stopped, matrix = threading.Event(), torch.eye(8)

    def linalg_eigh(given):
        management.interrupt_current_processing()
        assert stopped.wait(60)

    monkeypatch.setattr(progress, "_LARGE", 8)
    with pytest.raises(management.InterruptProcessingException), progress.stoppable():
        assert torch.equal(torch.linalg.eigh(matrix)[0], torch.ones(8))
        torch.overrides.handle_torch_function(linalg_eigh, (matrix,), matrix)
    stopped.set()


def test_stop_is_not_taken_for_an_error_of_what_is_read(management, progress):
    """Readers say of a file whatever its parser raises; between two operations of the parser
    somebody presses Stop.
    """
    ended = []
    with pytest.raises(management.InterruptProcessingException), progress.stoppable():
        management.interrupt_current_processing()
        try:
            torch.ones(3).sum()
        except Exception as error:
            ended.append(error)
        ended.append("went on")
    assert not ended and not management.processing_interrupted()
    torch.ones(3).sum()


@pytest.mark.parametrize(("form", "stop_at"), [("singular_values", 6), ("weight_updates", 2)])
def test_a_build_that_is_stopped_while_it_reads_keeps_all(
    app, management, tmp_path, monkeypatch, form, stop_at
):
    """Where files that cannot be read are skipped, a stopped one would be missing from then on."""
    import folder_paths
    import members

    for kind in ("loras", "w2w"):
        (tmp_path / kind).mkdir()
        folder_paths.add_model_folder_path(kind, str(tmp_path / kind), is_default=True)
    members.write_folder(tmp_path / "loras" / f"read {form}", 4, rank=2)
    reader = app.module("nodes.common.lora_reader")
    real, read = reader._load, []

    def load(*args):
        read.append(None)
        if len(read) == stop_at:
            management.interrupt_current_processing()
        return real(*args)

    given = {"rank": 4, "energy": 0.99, "components": 3, "standardize": True, "on_mismatch": "skip"}
    given |= {
        "folder": f"read {form}",
        "filename": f"read {form}",
        "form": form,
        "storage": "float32",
    }
    given = {name: [value] for name, value in given.items()}
    with monkeypatch.context() as patched:
        patched.setattr(reader, "_load", load)
        with pytest.raises(management.InterruptProcessingException):
            app.run("GBX_W2WBuildSpace", **given)
    space, report = app.run("GBX_W2WBuildSpace", **given)
    assert len(space.members) == 4 and "cannot be read" not in report


def test_a_node_without_a_model_is_stopped_between_two_operations(app, management, monkeypatch):
    pca = app.module("nodes.activations.pca")
    module = app.module("nodes.activations.activations")
    activations = module.Activations({"a": torch.rand(1, 4, 8, 8)}, (module.Row(0),), 1.0, 1.0)
    ended, colors = [], pca.pca_colors

    def interrupted(*args):
        management.interrupt_current_processing()
        result = colors(*args)
        ended.append(result)
        return result

    monkeypatch.setattr(pca, "pca_colors", interrupted)
    how = {"mode": "pca_rgb", "joint_fit": True, "channel": 0, "size": 16}
    with pytest.raises(management.InterruptProcessingException):
        app.run("GBX_ActivationPicture", activations=activations, **how)
    assert not ended


def test_a_node_that_evaluates_is_not_looked_at_between_operations(
    app, management, progress, monkeypatch
):
    """A look at each operation would slow evaluations down: Stop is looked at between them."""
    model, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    (positive,) = app.run("CLIPTextEncode", clip=clip, text="portrait")
    monkeypatch.setattr(
        progress.stoppable, "__torch_function__", lambda *_, **__: pytest.fail("an operation")
    )
    given = {
        "noise_unit": "paper_t",
        "level": 50.0,
        "noise_samples": 1,
        "pool_size": 1,
        "precision": "fp32",
    }
    latent = {"samples": torch.zeros(1, 24, 8, 8)}
    app.run(
        "GBX_LayerActivationTap",
        model=model,
        positive=positive,
        latent=latent,
        preset="custom_ids",
        ids="unet-out",
        seed=0,
        **given,
    )


def test_what_a_stopped_thread_has_left_ends_at_its_next_operation(management, progress):
    begun, go_on, ended, passed = threading.Event(), threading.Event(), threading.Event(), []

    def work():
        try:
            begun.set()
            assert go_on.wait(60)
            passed.append(torch.zeros(1))
        finally:
            ended.set()

    stopper = threading.Thread(
        target=lambda: begun.wait(60) and management.interrupt_current_processing()
    )
    stopper.start()
    with pytest.raises(management.InterruptProcessingException):
        progress.interruptible(work)
    stopper.join()
    go_on.set()
    assert ended.wait(60) and not passed
    assert not management.processing_interrupted()


def test_work_in_a_thread_is_in_the_mode_of_its_caller(progress):
    for mode in (True, False):
        with torch.inference_mode(mode):
            assert progress.interruptible(torch.is_inference_mode_enabled) is mode
    with pytest.raises(ZeroDivisionError):
        progress.interruptible(lambda: 1 / 0)


def test_a_figure_stops_while_it_is_drawn(app, management):
    output = app.module("nodes.host.image_output")
    figure, drawn = output.new_figure(200, 100), []
    axes = figure.subplots()
    lines = [axes.plot([0, 1], [0, number])[0] for number in range(20)]

    def interrupted(renderer, line=lines[3]):
        drawn.append(line)
        management.interrupt_current_processing()

    lines[3].draw = interrupted
    for line in lines[5:]:
        line.draw = lambda renderer: drawn.append(renderer)
    with pytest.raises(management.InterruptProcessingException):
        output.to_image(figure)
    assert drawn == [lines[3]]


def test_clusters_stop_while_they_are_fitted(app, management, monkeypatch):
    import sklearn.cluster

    stopped = threading.Event()

    def fit(self, points):
        management.interrupt_current_processing()
        assert stopped.wait(60)
        raise AssertionError

    monkeypatch.setattr(sklearn.cluster.KMeans, "fit", fit)
    module = app.module("nodes.activations.activations")
    activations = module.Activations({"a": torch.rand(1, 4, 8, 8)}, (module.Row(0),), 1.0, 1.0)
    how = {"clusters": 3, "seed": 0, "opacity": 0.5, "image": torch.rand(1, 8, 8, 3)}
    try:
        with pytest.raises(management.InterruptProcessingException):
            app.run("GBX_ActivationClusters", activations=activations, **how)
    finally:
        stopped.set()


@pytest.mark.parametrize("pairing", ["assign", "pool"])
def test_noise_stops_while_it_is_assigned(app, management, monkeypatch, pairing):
    """A pool of thousands takes one call of seconds, also when a sampler draws the noise."""
    assignment, stopped = app.module("nodes.noise.assignment"), threading.Event()
    (drawn,) = app.run("RandomNoise", noise_seed=1)
    latent = {"samples": torch.randn(4, 4, 8, 8)}
    how = {
        "cost": "dot_product",
        "pool_index": 0,
        "k": 4.0,
        "nearest_form": "closed_form",
        "grouping": "ignore",
    }
    how |= {"labels": "", "penalty": 1.0, "pool_size": 8}
    noise = app.run("GBX_ImmiscibleNoise", noise=drawn, latent=latent, pairing=pairing, **how)[0]

    def solve(cost, some_equal):
        management.interrupt_current_processing()
        assert stopped.wait(60)
        return np.arange(len(cost))

    monkeypatch.setattr(assignment, "_solve", solve)
    try:
        with pytest.raises(management.InterruptProcessingException):
            noise.generate_noise(latent)
    finally:
        stopped.set()
