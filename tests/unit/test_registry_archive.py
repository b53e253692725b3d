"""The archive that the ComfyUI registry distributes: what git tracks, less what .comfyignore leaves
out.
"""

import re
import subprocess
import sys
import zipfile

import pytest
import repository

from tools import archive as archive_files

_MOST_BYTES = 40_000_000


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The archive, unpacked in a folder, and its size in bytes."""
    names = archive_files.names()
    packed = tmp_path_factory.mktemp("registry") / "node.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as contents:
        for name in sorted(names):
            contents.write(repository.ROOT / name, name)
        contents.extractall(packed.with_suffix(""))
    return packed.with_suffix(""), packed.stat().st_size


def test_it_holds_what_a_user_needs(archive):
    folder, size = archive
    print(f"{size / 1e6:.1f} MB, {sum(path.is_file() for path in folder.rglob('*'))} files")
    top = {path.name for path in folder.iterdir() if path.suffix != ".md"}
    assert top == {
        *(
            "__init__.py",
            "nodes",
            "kernels",
            "web",
            "workflows",
            "assets",
            "locales",
            "subgraphs",
            "run.py",
        ),
        *("tools", "docs", "studies", "benchmarks"),
        *("pyproject.toml", "requirements.txt", "LICENSE", ".comfyignore", "CITATION.cff"),
    }
    assert {path.name for path in (folder / "tools").iterdir()} == {"__init__.py", "launcher"}
    assert size < _MOST_BYTES


def test_documents_that_help_pages_and_code_name_are_there(archive):
    folder, _ = archive
    named = {}
    for path in (*(folder / "web" / "docs").glob("*.md"), *(folder / "nodes").rglob("*.py")):
        found = re.findall(r"docs/\w+\.md", path.read_text("utf-8"))
        named |= {(folder / document).resolve(): f"{path.name}: {document}" for document in found}
    assert named
    assert sorted(where for path, where in named.items() if not path.exists()) == []


def test_every_link_of_every_page_leads_to_a_file_that_ships(archive):
    folder, _ = archive
    shipped = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert len([name for name in shipped if name.endswith(".md")]) > 100
    assert archive_files.dead_links(folder, shipped) == []


def test_a_dead_link_is_named(tmp_path):
    pages = {
        "README.md": "[a](docs/a.md) [b](docs)",
        "docs/a.md": '[c](../c%20d.json) <img src="e.png">',
    }
    for name, text in {**pages, "c d.json": "{}"}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    assert archive_files.dead_links(tmp_path, {*pages, "c d.json"}) == ["docs/a.md: docs/e.png"]
    assert archive_files.dead_links(tmp_path, pages) == [
        "docs/a.md: c d.json",
        "docs/a.md: docs/e.png",
    ]


@pytest.mark.parametrize(
    "code",
    [
        "run('run.py', '--help')",
        "run('run.py', 'check', '--help')",
        "import tools.launcher.check, tools.launcher.demo, tools.launcher.serve",
    ],
)
def test_the_launcher_works_there(archive, code):
    folder, _ = archive
    start = f"""
import runpy, sys
def run(script, *arguments):
    sys.argv = [script, *arguments]
    try: runpy.run_path(script, run_name="__main__")
    except SystemExit as ended: assert not ended.code, ended.code
runpy.run_path("run.py")["load_package"]("tools")
{code}
"""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", start], cwd=folder, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def test_the_pack_loads_there(archive):
    folder, _ = archive
    code = "import importlib.util as u, sys; s = u.spec_from_file_location('pack', '__init__.py', "
    code += (
        "submodule_search_locations=['.']); m = u.module_from_spec(s); sys.modules['pack'] = m; "
        "s.loader.exec_module(m)"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=folder, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
