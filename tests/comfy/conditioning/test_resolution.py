"""Resolution Noise Rescale on ComfyUI's own sampling classes and schedulers."""

import math
from types import SimpleNamespace

import conditioned
import pytest
import torch

FACTOR = 2.0
#: Models by their sampling: prediction, settings, and the largest sigma before (methods, section
#: 5).
DISCRETE = {
    "sdxl": ({"linear_start": 0.00085, "linear_end": 0.012}, 14.6146),
    "pixart": (
        {"beta_schedule": "sqrt_linear", "linear_start": 0.0001, "linear_end": 0.02},
        157.407,
    ),
    "hydit": ({"linear_start": 0.00085, "linear_end": 0.018}, 45.3836),
    "hydit1": ({"linear_start": 0.00085, "linear_end": 0.03}, 419.879),
}
#: Schedulers that ask a model for its sigmas. Kl optimal only takes the two ends, see below.
EXACT = (
    "simple",
    "sgm_uniform",
    "karras",
    "exponential",
    "ddim_uniform",
    "beta",
    "normal",
    "linear_quadratic",
)


class Patcher:
    """As much of a ModelPatcher as a sampling patch needs."""

    def __init__(self, sampling, patches=None):
        self.model, self._patches = SimpleNamespace(model_sampling=sampling), patches or {}

    def get_model_object(self, name):
        return self._patches.get(name, getattr(self.model, name))

    def clone(self):
        return Patcher(self.model.model_sampling, dict(self._patches))

    def add_object_patch(self, name, value):
        self._patches[name] = value


@pytest.fixture(scope="module")
def host(app):
    return app.module("nodes.conditioning.noise_rescale_comfy")


@pytest.fixture(scope="module")
def plain(app):
    """ComfyUI's sampling of a model type with settings."""
    from comfy import model_base

    def make(kind="EPS", **settings):
        return model_base.model_sampling(
            SimpleNamespace(sampling_settings=settings), model_base.ModelType[kind]
        )

    return make


@pytest.fixture(scope="module")
def moved(host):
    def make(sampling, factor=FACTOR, mode="sampler_only"):
        return host.rescaled(Patcher(sampling), factor, mode).get_model_object("model_sampling")

    return make


def sigmas(sampling, scheduler, steps=20):
    from comfy import samplers

    return samplers.calculate_sigmas(sampling, scheduler, steps)


def close(a, b, rel=2e-6):
    return torch.allclose(
        torch.as_tensor(a).double(), torch.as_tensor(b).double(), rtol=rel, atol=1e-9
    )


def test_sdxl_by_number(plain, moved):
    """The ends and means of SDXL's 1000 sigmas, and twice them."""
    base, new = plain(), moved(plain())
    assert (float(base.sigma_min), float(base.sigma_max)) == pytest.approx(
        (0.0291672, 14.6146), rel=1e-5
    )
    assert (float(new.sigma_min), float(new.sigma_max)) == pytest.approx(
        (0.0583344, 29.2292), rel=1e-5
    )
    alphas = [1 / (1 + table.sigmas.double() ** 2) for table in (base, new)]
    assert [float(table[-1]) for table in alphas] == pytest.approx(
        [0.00466010, 0.00116911], rel=1e-5
    )
    variance = [(1 - table[[100, 500, 999]]).sqrt().tolist() for table in alphas]
    assert variance[0] == pytest.approx([0.325233, 0.850686, 0.997667], abs=1e-6)
    assert variance[1] == pytest.approx([0.566732, 0.955435, 0.999415], abs=1e-6)
    betas = [1 - table / torch.cat([torch.ones(1).double(), table[:-1]]) for table in alphas]
    assert [float(betas[0][t]) for t in (0, 500, 999)] == pytest.approx(
        [0.00085, 0.00481495, 0.012], rel=1e-3
    )
    assert [float(betas[1][t]) for t in (0, 500, 999)] == pytest.approx(
        [0.00339135, 0.00607373, 0.0120421], rel=1e-3
    )


@pytest.mark.parametrize("name", list(DISCRETE))
@pytest.mark.parametrize("mode", ["sampler_only", "retimed"])
@pytest.mark.parametrize("scheduler", EXACT)
def test_every_scheduler_gives_the_scaled_values(plain, moved, name, mode, scheduler):
    settings, largest = DISCRETE[name]
    base = plain(**settings)
    assert float(base.sigma_max) == pytest.approx(largest, rel=1e-5)
    new = moved(plain(**settings), mode=mode)
    assert close(sigmas(new, scheduler), FACTOR * sigmas(base, scheduler))
    assert float(new.sigma_max) == pytest.approx(2 * largest, rel=1e-5)


def test_kl_optimal_is_scaled_at_its_ends(plain, moved):
    """It bends between two ends by arc tangents and knows of no model: only the ends are s times
    the base's.
    """
    base, new = sigmas(plain(), "kl_optimal"), sigmas(moved(plain()), "kl_optimal")
    assert close(new[[0, -2]], FACTOR * base[[0, -2]], rel=1e-5)
    assert not close(new[1:-2], FACTOR * base[1:-2], rel=1e-2)


@pytest.mark.parametrize("name", list(DISCRETE))
def test_retimed_keeps_every_timestep(plain, moved, name):
    base, new = plain(**DISCRETE[name][0]), moved(plain(**DISCRETE[name][0]), mode="retimed")
    assert new.timestep(FACTOR * base.sigmas).tolist() == list(range(1000))


def test_sampler_only_gives_the_true_timestep(plain, moved):
    """The network is given the true level, so 999 at the top and 3 at the end."""
    base, new = plain(), moved(plain())
    assert new.timestep(base.sigmas).tolist() == list(range(1000))
    assert new.timestep(new.sigma_max[None]).item() == 999
    assert new.timestep(new.sigma_min[None]).item() == 3


def test_percents_give_scaled_sigmas(plain, moved):
    """percent_to_sigma of SDXL, and twice it."""
    base, new = plain(), moved(plain())
    assert [base.percent_to_sigma(p) for p in (0.25, 0.5, 0.75)] == pytest.approx(
        [4.0861, 1.6156, 0.6951], abs=1e-4
    )
    assert [new.percent_to_sigma(p) for p in (0.25, 0.5, 0.75)] == pytest.approx(
        [8.1722, 3.2312, 1.3902], abs=2e-4
    )
    assert (new.percent_to_sigma(0.0), new.percent_to_sigma(1.0)) == (999999999.9, 0.0)


@pytest.mark.parametrize("mode", ["sampler_only", "retimed"])
@pytest.mark.parametrize("kind", ["EPS", "FLOW", "FLUX", "EDM"])
def test_factors_multiply(plain, host, kind, mode):
    """s, then 1/s, is nothing; s1, then s2, is s1 s2."""

    def through(*factors):
        patcher = Patcher(plain(kind))
        for factor in factors:
            patcher = host.rescaled(patcher, factor, mode)
        return patcher.get_model_object("model_sampling")

    base, back, twice, once = plain(kind), through(2.0, 0.5), through(1.5, 2.0), through(3.0)
    for scheduler in ("simple", "normal", "beta"):
        assert close(sigmas(back, scheduler), sigmas(base, scheduler), rel=1e-5)
        assert close(sigmas(twice, scheduler), sigmas(once, scheduler), rel=1e-5)
    some = base.sigmas[[5, 400, 990]]
    assert close(back.timestep(some), base.timestep(some), rel=1e-5)
    assert close(twice.timestep(some), once.timestep(some), rel=1e-5)


def test_factor_one_is_stock(plain, host):
    patcher = Patcher(plain())
    assert (
        host.rescaled(patcher, 1.0, "retimed").get_model_object("model_sampling")
        is patcher.model.model_sampling
    )


@pytest.mark.parametrize("kind", ["EPS", "V_PREDICTION", "EDM", "FLOW", "FLUX"])
def test_predictions_are_those_of_the_base_class(plain, moved, kind):
    base, new = plain(kind), moved(plain(kind))
    assert isinstance(new, type(base).__mro__[1]) and isinstance(new, type(base).__mro__[2])
    generator = torch.Generator().manual_seed(0)
    x, output = (torch.randn(2, 4, 8, 8, generator=generator) for _ in range(2))
    sigma = torch.tensor([0.3, 0.7])
    assert torch.equal(new.calculate_input(sigma, x), base.calculate_input(sigma, x))
    assert torch.equal(
        new.calculate_denoised(sigma, output, x), base.calculate_denoised(sigma, output, x)
    )


# Flow models


def noise_over_signal(values):
    values = torch.as_tensor(values).double()[:-1]
    return values / (1 - values)


@pytest.mark.parametrize("scheduler", ["simple", "normal", "sgm_uniform", "ddim_uniform", "beta"])
@pytest.mark.parametrize("kind", ["FLOW", "FLUX"])
@pytest.mark.parametrize("mode", ["sampler_only", "retimed"])
def test_flow_noise_over_signal_is_multiplied(plain, moved, kind, scheduler, mode):
    base, new = plain(kind, shift=1.15 if kind == "FLUX" else 3.0), None
    new = moved(base, mode=mode)
    before, after = (noise_over_signal(sigmas(table, scheduler)) for table in (base, new))
    inner = before < 1e4  # at t = 1 both are pure noise
    assert torch.allclose((after / before)[inner], torch.tensor(2.0).double(), rtol=1e-3)


def test_flow_shift_of_three_becomes_six(plain, moved):
    new, wanted = moved(plain("FLOW", shift=3.0)), plain("FLOW", shift=6.0)
    assert close(new.sigmas, wanted.sigmas)
    assert float(plain("FLOW", shift=3.0).sigma(torch.tensor(500.0))) == pytest.approx(0.75)
    times = torch.tensor([10.0, 400.0, 990.0])
    assert close(new.sigma(times), wanted.sigma(times))
    assert close(
        [new.percent_to_sigma(p) for p in (0.0, 0.3, 1.0)],
        [wanted.percent_to_sigma(p) for p in (0, 0.3, 1)],
    )
    assert close(new.timestep(wanted.sigmas), wanted.timestep(wanted.sigmas))


def test_flux_mu_rises_by_the_logarithm(plain, moved):
    """mu 1.15 at 2048 x 2048: 1.843147."""
    wanted = plain("FLUX", shift=1.15 + math.log(2))
    assert wanted.shift == pytest.approx(1.843147, abs=1e-6)
    assert close(moved(plain("FLUX", shift=1.15)).sigmas, wanted.sigmas)


# EDM, Cascade, zero terminal SNR


def test_edm_sigmas_are_scaled(plain, moved):
    base = plain("EDM", sigma_max=80.0, sigma_min=0.002)
    new, retimed = moved(base), moved(base, mode="retimed")
    assert (float(new.sigma_min), float(new.sigma_max)) == pytest.approx((0.004, 160.0), rel=1e-4)
    for scheduler in EXACT:
        assert close(sigmas(new, scheduler), FACTOR * sigmas(base, scheduler), rel=1e-5)
    level = torch.tensor([1.0])
    assert float(new.timestep(level)) == 0.0
    assert float(retimed.timestep(2 * level)) == 0.0
    assert float(new.timestep(torch.tensor([160.0]))) == pytest.approx(
        0.25 * math.log(80.0), rel=1e-6
    )


def test_cascade_follows_its_own_shift(plain, moved):
    """Cascade's shift multiplies sigma, so s = 2 is shift 2."""
    base, shifted = plain("STABLE_CASCADE", shift=1.0), plain("STABLE_CASCADE", shift=2.0)
    times = torch.linspace(0.1, 0.9, 9)
    assert close(shifted.sigma(times) / base.sigma(times), torch.full((9,), 2.0), rel=1e-4)
    assert close(moved(base).sigma(times), shifted.sigma(times), rel=1e-4)


@pytest.mark.parametrize("mode", ["sampler_only", "retimed"])
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_zero_terminal_snr_keeps_its_pure_noise(plain, moved, mode, factor):
    base = plain("V_PREDICTION", zsnr=True)
    new = moved(base, factor, mode)
    assert float(base.sigma_max) == pytest.approx(4518.8, rel=1e-4)
    assert float(new.sigma_max) == float(base.sigma_max)
    assert close(new.sigmas[:-1], factor * base.sigmas[:-1])
    assert new.timestep(new.sigma_max[None]).item() == 999
    if mode == "retimed":
        assert new.timestep(new.sigmas).tolist() == list(range(1000))


# The node


def rescale(app, model, **changes):
    given = {
        "width": 128,
        "height": 128,
        "base_width": 64,
        "base_height": 0,
        "mode": "sampler_only",
        "scheduler": "normal",
    }
    return app.run("GBX_ResolutionNoiseRescale", model=model, **{**given, **changes})


@pytest.fixture(scope="module")
def sdxl(app):
    return conditioned.model("sdxl")


def test_the_node_s_outputs(app, sdxl):
    moved, factor, figure, text, _ = rescale(app, sdxl)
    assert (
        factor == 2.0 and "128 x 128 against 64 x 64" in text and "0.02917 to 14.61 before" in text
    )
    assert "0.05833 to 29.23 after" in text
    assert tuple(figure.shape) == (1, 500, 800, 3)
    assert float(moved.get_model_object("model_sampling").sigma_max) == pytest.approx(
        29.2292, rel=1e-5
    )
    assert float(sdxl.get_model_object("model_sampling").sigma_max) == pytest.approx(
        14.6146, rel=1e-5
    )


def test_the_base_that_a_report_judges_is_the_geometric_mean_of_its_sides(app, sdxl):
    text = rescale(app, sdxl, width=512, height=512, base_width=512, base_height=128)[3]
    assert "Base size 256 is far from 1024" in text


def flow(app, shift=3.0):
    return app.run("ModelSamplingSD3", model=conditioned.model("sdxl"), shift=shift)[0]


def test_report_names_the_schedulers_that_do_not_follow_the_law(app, sdxl):
    """Karras, exponential and linear_quadratic use the ends of a flow schedule alone, and its end
    is pure noise.
    """
    text = rescale(app, flow(app))[3]
    right, wrong = text.split("Not: ")
    for name in ("karras", "exponential", "linear_quadratic"):
        assert name in wrong and name not in right
    for name in ("simple", "sgm_uniform", "beta"):
        assert name in right
    eps = rescale(app, sdxl)[3]
    assert "kl_optimal" in eps.split("Not: ")[1] and "karras" in eps.split("Not: ")[0]


@pytest.mark.parametrize("scheduler", ["karras", "linear_quadratic", "simple"])
def test_connected_sigmas_follow_the_law(app, scheduler):
    model = flow(app)
    given = sigmas(model.get_model_object("model_sampling"), scheduler, 8)
    moved = rescale(app, model, sigmas=given)[4]
    assert torch.allclose(moved, 2 * given / (1 + given), atol=1e-6)
    assert float(moved[-1]) == 0


def test_a_shift_on_the_model_is_reported(app, sdxl):
    assert "shifted already" not in rescale(app, sdxl)[3]
    flux = conditioned.model("sdxl")
    base = app.run(
        "ModelSamplingFlux", model=flux, max_shift=1.15, base_shift=0.5, width=2048, height=2048
    )[0]
    once = app.run("ModelSamplingSD3", model=flux, shift=3.0)[0]
    flux.model.model_sampling = once.get_model_object("model_sampling")
    assert "shifted already (3.23" in rescale(app, base)[3]
    assert "shifted already" not in rescale(app, once)[3]


def test_the_figure_shows_the_chosen_scheduler(app, sdxl):
    figures = [rescale(app, sdxl, scheduler=name)[2] for name in ("normal", "karras")]
    assert not torch.equal(*figures)


def test_sizes_from_a_latent_and_from_what_is_known(app, sdxl):
    latent = {"samples": torch.zeros(1, 4, 128, 256)}
    assert rescale(app, sdxl, latent=latent, base_width=0)[1] == pytest.approx(math.sqrt(2))
    assert rescale(app, conditioned.model("sd15"), latent=latent, base_width=0)[1] == pytest.approx(
        8**0.5
    )
    demo = app.run("GBX_LoadDemoModel", weights="avatars-v2")[0]
    assert rescale(app, demo, width=256, height=256, base_width=0)[1] == 2.0


def test_a_model_of_unknown_size_asks_for_it(app, sdxl, monkeypatch):
    monkeypatch.setattr(app.module("nodes.conditioning.noise_rescale_comfy"), "_TRAINED", {})
    with pytest.raises(ValueError, match="set base_width and base_height"):
        rescale(app, sdxl, base_width=0)


def test_at_the_trained_size_images_are_stock(app, sdxl):
    same = rescale(app, sdxl, width=64, height=64)[0]
    positive = conditioned.prompt("sdxl")
    levels = [14.6146, 0.5, 0.0]
    assert torch.equal(
        *(
            conditioned.sample(conditioned.guider(model, positive, positive, 2.0), levels)
            for model in (same, sdxl)
        )
    )


@pytest.mark.parametrize(("mode", "timesteps"), [("sampler_only", [999, 3]), ("retimed", [999, 0])])
def test_timesteps_that_the_network_is_given(app, sdxl, mode, timesteps):
    moved, positive = rescale(app, sdxl, mode=mode)[0], conditioned.prompt("sdxl")
    with conditioned.watched(sdxl) as seen:
        conditioned.sample(
            conditioned.guider(moved, positive, positive, 1.0),
            sigmas(moved.get_model_object("model_sampling"), "normal", 2),
        )
    assert [call["timestep"].item() for call in seen] == timesteps


def test_it_keeps_sampling_patches_before_it(app, sdxl):
    zsnr = app.run("ModelSamplingDiscrete", model=sdxl, sampling="v_prediction", zsnr=True)[0]
    table = rescale(app, zsnr)[0].get_model_object("model_sampling")
    assert float(table.sigma_max) == pytest.approx(4518.8, rel=1e-4)
    flow = app.run("ModelSamplingSD3", model=sdxl, shift=3.0)[0]
    table = rescale(app, flow)[0].get_model_object("model_sampling")
    wanted = app.run("ModelSamplingSD3", model=sdxl, shift=6.0)[0].get_model_object(
        "model_sampling"
    )
    assert close(table.sigmas, wanted.sigmas)


def test_a_gate_reads_the_true_level(app, sdxl, host):
    base = sdxl.get_model_object("model_sampling")
    for mode, level in (("sampler_only", 4.0), ("retimed", 8.0)):
        table = rescale(app, sdxl, mode=mode)[0].get_model_object("model_sampling")
        assert host.noise_fraction(table, level) == host.noise_fraction(base, 4.0)


def test_models_without_noise_are_refused(plain, host):
    sampling = plain("IMG_TO_IMG")
    with pytest.raises(ValueError, match="does not sample from noise"):
        host.rescaled(Patcher(sampling), 2.0, "retimed")
