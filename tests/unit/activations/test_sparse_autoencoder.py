"""TopK sparse autoencoders: the paper's formulas in float64, exact resuming, files, and the
published layout.
"""

import json

import published_autoencoder
import pytest
import torch
from glassbox.nodes.activations import autoencoder_file, autoencoder_training, sparse_autoencoder
from glassbox.nodes.activations.activations import Activations, Row
from glassbox.nodes.activations.autoencoder_training import Trainer, TrainingSettings
from glassbox.nodes.common.network_call import WHOLE, Part

FEATURES, CHANNELS, K = 24, 10, 3
SETTINGS = TrainingSettings(features=FEATURES, k=K, learning_rate=1e-2, dead_after=5, seed=0)
PUBLISHED = "unet.down_blocks.2.attentions.1_k10_hidden5120_auxk256_bs4096_lr0.0001"


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def autoencoder():
    decoder = torch.nn.functional.normalize(drawn(FEATURES, CHANNELS, seed=2), dim=1)
    return sparse_autoencoder.SparseAutoencoder(
        "mid-vit-out",
        K,
        drawn(FEATURES, CHANNELS, seed=1),
        decoder,
        drawn(CHANNELS, seed=3),
        drawn(FEATURES, seed=4),
        drawn(FEATURES, seed=5).abs(),
        about={"batches": 3},
    )


def reference_features(x, encoder, pre_bias, latent_bias, k):
    """Gao et al., equations 1 and 3, one position and one feature at a time, in float64."""
    result = torch.zeros(len(x), len(encoder), dtype=torch.float64)
    for row, point in enumerate(x.double()):
        values = [
            float((w * (point - pre_bias)).sum() + b)
            for w, b in zip(encoder, latent_bias, strict=True)
        ]
        for number in sorted(range(len(values)), key=lambda one: -values[one])[:k]:
            result[row, number] = max(values[number], 0.0)
    return result


def doubles(autoencoder):
    names = ("encoder", "decoder", "pre_bias", "latent_bias")
    return {name: getattr(autoencoder, name).double() for name in names}


def test_encoding_and_decoding_are_the_papers(autoencoder):
    points, given = drawn(40, CHANNELS), doubles(autoencoder)
    expected = reference_features(
        points, given["encoder"], given["pre_bias"], given["latent_bias"], K
    )
    found = autoencoder.encode(points)
    assert torch.allclose(found.double(), expected, atol=1e-5)  # float32 sums of ten products
    assert int((found > 0).sum(1).max()) == K
    decoded = torch.stack(
        [sum(z * d for z, d in zip(one, given["decoder"], strict=True)) for one in expected]
    )
    assert torch.allclose(
        autoencoder.decode(found).double(), decoded + given["pre_bias"], atol=1e-5
    )


def test_the_loss_is_the_papers(autoencoder):
    """Gao et al., section 2.4 and A.2: the error's reconstruction from the C / 2 largest dead
    features.
    """
    points, given = drawn(7, CHANNELS), doubles(autoencoder)
    dead = torch.zeros(FEATURES, dtype=torch.bool)
    dead[::2] = True
    main, auxiliary, _ = autoencoder_training.loss(points.double(), given, K, dead)
    z = reference_features(points, given["encoder"], given["pre_bias"], given["latent_bias"], K)
    error = points.double() - z @ given["decoder"] - given["pre_bias"]
    revived = reference_features(
        points, given["encoder"][dead], given["pre_bias"], given["latent_bias"][dead], CHANNELS // 2
    )
    expected = [
        (error**2).sum(1).mean(),
        ((error - revived @ given["decoder"][dead]) ** 2).sum(1).mean(),
    ]
    assert [float(main), float(auxiliary)] == pytest.approx(
        [float(one) for one in expected], rel=1e-12
    )
    assert float(autoencoder_training.loss(points.double(), given, K, ~dead & dead)[1]) == 0


def test_decoding_reads_the_active_features_alone():
    """Equal to the dense product to 1e-6 of the largest value, gradients included."""
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(40, 70, generator=generator, requires_grad=True)
    decoder = torch.randn(70, 12, generator=generator, requires_grad=True)
    weights = torch.randn(40, 12, generator=generator)
    active = sparse_autoencoder.ActiveFeatures.of(values, 5)
    assert active.values.shape == active.places.shape == (40, 5) and (active.values >= 0).all()
    largest, places = values.topk(5)
    dense = torch.zeros_like(values).scatter(-1, places, largest.relu())
    assert torch.equal(active.dense(70), dense)
    expected, found = dense @ decoder, active.decode(decoder)
    gradients = [
        torch.autograd.grad((one * weights).sum(), (values, decoder)) for one in (expected, found)
    ]
    for one, other in zip((expected, *gradients[0]), (found, *gradients[1]), strict=True):
        assert (one - other).abs().max() < 1e-6 * one.abs().max()


def test_a_step_is_adam_on_the_projected_gradient():
    """Appendix A.3: the decoder's gradient loses its part along each column, and columns stay at
    unit length.
    """
    points = drawn(64, CHANNELS)
    trainer = Trainer.start(SETTINGS, points)
    before = {name: value.double() for name, value in trainer.state().items()}
    trainer.step(points)
    names = ("encoder", "decoder", "pre_bias", "latent_bias")
    parameters = {name: before[name].clone().requires_grad_() for name in names}
    scaled = (points.double() - before["center"]) / before["scale"]
    main, _, _ = autoencoder_training.loss(
        scaled, parameters, K, torch.zeros(FEATURES, dtype=torch.bool)
    )
    main.backward()
    found = trainer.state()
    for name, parameter in parameters.items():
        gradient = parameter.grad
        if name == "decoder":
            gradient = gradient - (gradient * before[name]).sum(1, keepdim=True) * before[name]
        assert torch.allclose(
            found[f"{name}.exp_avg"].double(),
            0.1 * gradient,
            atol=1e-5 * float(gradient.abs().max()),
        )
    assert torch.allclose(found["decoder"].norm(dim=1), torch.ones(FEATURES), atol=1e-6)


def planted(count=4096, seed=0):
    """Sums of two of sixteen random directions."""
    directions = torch.nn.functional.normalize(drawn(16, 32, seed=9), dim=1)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(count, 16, generator=generator).topk(2).indices
    weights = torch.zeros(count, 16).scatter(
        1, chosen, 1 + torch.rand(count, 2, generator=generator)
    )
    return weights @ directions + 3, directions


def test_training_finds_planted_directions():
    points, directions = planted()
    trainer = Trainer.start(
        TrainingSettings(features=32, k=2, learning_rate=1e-2, dead_after=20, seed=0), points
    )
    for _ in range(20):
        for batch in points.split(256):
            trainer.step(batch)
    autoencoder = trainer.autoencoder("a", {})
    assert autoencoder_training.explained_variance(autoencoder, planted(seed=1)[0]) > 0.9
    similarity = (autoencoder.decoder @ directions.T).amax(0)
    assert int((similarity > 0.95).sum()) >= 14, similarity
    active = autoencoder.encode(points)
    mean = active.sum(0) / (active > 0).sum(0).clamp_min(1)
    common = (active > 0).sum(0) > 100
    assert torch.allclose(
        autoencoder.usual[common], mean[common], rtol=0.2
    )  # a running mean while it trained


def test_explained_variance_is_one_less_the_unexplained_fraction(autoencoder):
    points = drawn(50, CHANNELS, seed=8)
    error = (points - autoencoder.decode(autoencoder.encode(points))).double()
    expected = 1 - error.pow(2).sum() / (50 - 1) / points.double().var(0).sum()
    assert autoencoder_training.explained_variance(autoencoder, points) == pytest.approx(
        float(expected), rel=1e-5
    )


def test_a_resumed_training_is_the_uninterrupted_one():
    points, _ = planted(1024)
    settings = TrainingSettings(features=32, k=2, learning_rate=1e-2, dead_after=3, seed=0)
    whole = Trainer.start(settings, points)
    for batch in points.split(128):
        whole.step(batch)
    part = Trainer.start(settings, points)
    for batch in points.split(128)[:3]:
        part.step(batch)
    resumed = Trainer(settings, part.state())
    for batch in points.split(128)[3:]:
        resumed.step(batch)
    found, expected = resumed.state(), whole.state()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert (whole.steps, whole.dead()) == (resumed.steps, resumed.dead()) and whole.steps == 8


def test_maps_are_the_features_of_positions(autoencoder):
    feature, other = drawn(2, CHANNELS, 3, 5), drawn(2, CHANNELS, 3, 5, seed=7)
    activations = Activations({"mid-vit-out": feature, "b": other}, (Row(0), Row(1)), 0.1, 50.0)
    maps = autoencoder.maps(activations)
    assert maps.shape == (2, FEATURES, 3, 5)
    assert torch.allclose(
        maps[1, :, 2, 4], autoencoder.encode(feature[1, :, 2, 4][None])[0], atol=1e-6
    )
    difference = sparse_autoencoder.SparseAutoencoder(**{**vars(autoencoder), "input_id": "b"})
    assert difference.ids == ["mid-vit-out", "b"]
    expected = autoencoder.encode((feature - other)[0, :, 1, 2][None])[0]
    assert torch.allclose(difference.maps(activations)[0, :, 1, 2], expected, atol=1e-5)
    with pytest.raises(ValueError, match="which the activations do not hold"):
        autoencoder.maps(Activations({"b": other}, (Row(0), Row(1)), 0.1, 50.0))


@pytest.mark.parametrize("mode", ["add", "scale"])
def test_steering_adds_rows_of_the_decoder(autoencoder, mode):
    feature, mask = drawn(2, CHANNELS, 4, 4), torch.zeros(1, 4, 4)
    mask[0, 1, 2] = 0.5
    edit = sparse_autoencoder.steer_features(autoencoder, {3: 2.0, 7: -1.0}, mode, mask)
    found, point = (
        edit(None, Part(role="positive", rows=slice(0, 2), area=WHOLE), feature, 1),
        feature[1, :, 1, 2],
    )
    values = autoencoder.usual if mode == "add" else autoencoder.encode(point[None])[0]
    delta = 2 * values[3] * autoencoder.decoder[3] - values[7] * autoencoder.decoder[7]
    assert torch.allclose(found[1, :, 1, 2], point + 0.5 * delta, atol=1e-5)
    assert torch.equal(found[:, :, 0], feature[:, :, 0])


def test_scaling_an_active_feature_by_minus_one_removes_its_part(autoencoder):
    feature = drawn(1, CHANNELS, 2, 2)
    before = autoencoder.encode(feature.movedim(1, -1).flatten(0, -2))
    number = int(before.sum(0).argmax())
    edit = sparse_autoencoder.steer_features(autoencoder, {number: -1.0}, "scale", None)
    removed = before.clone()
    removed[:, number] = 0
    changed = edit(None, True, feature, 1) - feature
    expected = (
        (autoencoder.decode(removed) - autoencoder.decode(before))
        .view(1, 2, 2, CHANNELS)
        .movedim(-1, 1)
    )
    assert torch.allclose(changed, expected, atol=1e-5)


def test_strengths_are_parsed():
    assert sparse_autoencoder.parse_strengths("1 = 2.5 # nose\n\n 3=-1, 4 = 0", 5) == {
        1: 2.5,
        3: -1.0,
        4: 0.0,
    }
    for text, reason in (
        ("x = 1", "Write a feature as in"),
        ("5 = 1", "Features are 0 to 4"),
        ("1 = nan", "0 to 4"),
        ("1 = 10001", "strengths to 10000"),
        ("1 = -10001", "strengths to 10000"),
    ):
        with pytest.raises(ValueError, match=reason):
            sparse_autoencoder.parse_strengths(text, 5)
    assert sparse_autoencoder.parse_strengths("1 = -10000, 2 = 1e4", 5) == {1: -1e4, 2: 1e4}


def test_an_autoencoder_is_written_and_read(autoencoder, tmp_path):
    autoencoder_file.write(autoencoder, tmp_path / "a.safetensors")
    found = autoencoder_file.read(tmp_path / "a.safetensors")
    assert found.report() == autoencoder.report() and found.about == autoencoder.about
    assert all(
        torch.equal(getattr(found, name), value) for name, value in tensors_of(autoencoder).items()
    )
    (tmp_path / "b.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"b\.safetensors cannot be read"):
        autoencoder_file.read(tmp_path / "b.safetensors")
    broken = sparse_autoencoder.SparseAutoencoder(**{**vars(autoencoder), "usual": torch.zeros(3)})
    autoencoder_file.write(broken, tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match="do not fit together"):
        autoencoder_file.read(tmp_path / "c.safetensors")


def tensors_of(autoencoder):
    return {
        name: value for name, value in vars(autoencoder).items() if isinstance(value, torch.Tensor)
    }


def publish(folder, autoencoder):
    published_autoencoder.write(folder, K, **tensors_of(autoencoder))


def test_a_published_folder_is_read(autoencoder, tmp_path):
    folder = tmp_path / PUBLISHED / "final"
    publish(folder, autoencoder)
    found = autoencoder_file.read(folder)
    assert (
        found.ids == ["down-level2-repeat1-vit-out", "down-level2-repeat1-res-out"] and found.k == K
    )
    assert all(
        torch.equal(getattr(found, name), value) for name, value in tensors_of(autoencoder).items()
    )
    (folder / "config.json").write_text(
        json.dumps({"n_dirs_local": 5, "d_model": CHANNELS, "k": K})
    )
    with pytest.raises(ValueError, match=r"other sizes than config\.json"):
        autoencoder_file.read(folder)
    (folder / "mean.pt").unlink()
    with pytest.raises(ValueError, match=r"lacks mean\.pt"):
        autoencoder_file.read(folder)


@pytest.mark.parametrize(
    ("block", "id_"),
    [
        ("unet.mid_block.attentions.0", "mid-vit-out"),
        ("unet.up_blocks.0.attentions.1", "up-level0-repeat1-vit-out"),
        ("unet.conv_out", None),
    ],
)
def test_a_folder_names_its_block(block, id_, tmp_path):
    folder = tmp_path / f"{block}_k10_hidden5120" / "final"
    if id_ is None:
        with pytest.raises(ValueError, match="does not say which block"):
            autoencoder_file.block_ids(folder)
    else:
        assert autoencoder_file.block_ids(folder)[0] == id_


def test_a_pickle_is_not_executed(autoencoder, tmp_path):
    folder, mark = tmp_path / PUBLISHED / "final", tmp_path / "executed"
    publish(folder, autoencoder)

    class Harmful:
        def __reduce__(self):
            return mark.touch, ()

    torch.save({"state_dict": Harmful()}, folder / "state_dict.pth")
    with pytest.raises(ValueError, match=r"state_dict\.pth"):
        autoencoder_file.read(folder)
    assert not mark.exists()


def test_a_step_adds_the_auxiliary_loss_at_the_papers_weight():
    """Appendix A.2 of Gao et al.: 1/32 of it, where features are dead; Adam's moment is a tenth of
    the gradient.
    """
    points = drawn(64, CHANNELS)
    state = Trainer.start(SETTINGS, points).state()
    state["idle"][::3] = SETTINGS.dead_after
    trainer = Trainer(SETTINGS, state)
    trainer.step(points)
    parameters = {
        name: state[name].double().clone().requires_grad_()
        for name in ("encoder", "decoder", "pre_bias", "latent_bias")
    }
    dead = torch.zeros(FEATURES, dtype=torch.bool)
    dead[::3] = True
    scaled = (points.double() - state["center"].double()) / state["scale"].double()
    main, auxiliary, _ = autoencoder_training.loss(scaled, parameters, K, dead)
    assert float(auxiliary.detach()) > 0.1 * float(
        main.detach()
    )  # else its weight could not be seen
    (main + auxiliary / 32).backward()
    found = trainer.state()
    for name in ("encoder", "pre_bias", "latent_bias"):
        gradient = parameters[name].grad
        difference = found[f"{name}.exp_avg"].double() - 0.1 * gradient
        assert difference.abs().max() < 1e-5 * gradient.abs().max()
