"""What the browser and the cluster need, in one sentence where it is missing."""

import contextlib

import pytest
from absent_packages import make_absent

from tools.launcher import canvas
from tools.launcher.batch import cluster
from tools.launcher.errors import LaunchError, missing_package


@contextlib.contextmanager
def _ray():
    yield cluster.start("local", {})


#: What imports a package that the launcher can do without, and the command that installs it.
USES = {
    "playwright": (canvas.chromium, "pip install playwright"),
    "ray": (_ray, 'pip install "ray[default]"'),
}


@pytest.mark.parametrize("package", USES)
def test_a_missing_package_is_named_with_its_command(package, monkeypatch):
    make_absent(package, monkeypatch)
    work, install = USES[package]
    with pytest.raises(LaunchError) as caught, work():
        pytest.fail("The package was imported.")
    assert f"{package}, which is not installed: " in str(caught.value)
    assert str(caught.value).endswith(install)


@pytest.mark.parametrize("package", USES)
@pytest.mark.parametrize(
    "cause", ["DLL load failed while importing _core.", "No module named 'greenlet'"]
)
def test_a_broken_package_is_named_with_its_cause(package, cause, monkeypatch):
    """Installing it again would not help: no command is given."""
    make_absent(package, monkeypatch, cause=cause)
    with pytest.raises(LaunchError) as caught, USES[package][0]():
        pytest.fail("The package was imported.")
    assert f"{package}, which is installed but cannot be imported" in str(caught.value)
    assert cause in str(caught.value)
    assert "pip install" not in str(caught.value)


def test_a_package_that_lacks_another_names_that(monkeypatch):
    """An absent module of another package is no lack of the package that asks for it."""
    absent = ModuleNotFoundError("No module named 'greenlet'", name="greenlet")
    text = missing_package("The browser", "playwright", absent, "pip install playwright")
    assert text.endswith("cannot be imported here: No module named 'greenlet'")


def test_without_chromium_one_sentence_says_what_to_install(monkeypatch, tmp_path):
    pytest.importorskip("playwright")
    monkeypatch.setattr(canvas.shutil, "which", lambda name: None)
    for named in (None, str(tmp_path / "absent")):
        monkeypatch.delenv("CHROMIUM", raising=False)
        if named:
            monkeypatch.setenv("CHROMIUM", named)
        with pytest.raises(LaunchError, match="install chromium"), canvas.chromium():
            pytest.fail("There is no browser.")
