"""What a student of few steps is trained on."""

import pytest
import torch

from studies.conditioning import student


class Sampling:
    """Noise level and time in proportion."""

    def timestep(self, sigma):
        return 10 * sigma

    def sigma(self, time):
        return time / 10


def test_the_clean_latent_of_a_step_leads_where_the_teacher_is():
    draws = torch.Generator().manual_seed(0)
    before = torch.randn(3, 2, 4, 6, generator=draws)
    after = torch.randn(3, 2, 4, 6, generator=draws)
    high = torch.tensor([9.0, 2.0, 0.5]).view(-1, 1, 1, 1)
    low = torch.tensor([2.0, 0.5, 0.0]).view(-1, 1, 1, 1)
    clean = student.clean_for_step(before, after, high, low)
    step = before + (low - high) * (before - clean) / high
    assert torch.allclose(step, after, atol=1e-5)


def test_other_settings_never_read_a_kept_student():
    settings = [1024, 3.0, student.PLAN]
    file = student._file("student", settings)
    assert file == student._file("student", list(settings))
    assert file != student._file("student", [1024, 8.0, student.PLAN])
    assert file != student._file("student", [1024, 3.0, student.QUICK_PLAN])


def test_the_teachers_levels_divide_each_step_evenly_in_time():
    first, second = student.between(Sampling(), torch.tensor([6.0, 3.0, 0.0]))
    assert first.tolist() == pytest.approx([6.0, 5.0, 4.0, 3.0])
    assert second.tolist() == pytest.approx([3.0, 2.0, 1.0, 0.0])
