"""The documentation: every snippet runs, and the site builds without a warning or a broken link."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pbwn

ROOT = Path(__file__).parents[1]
ELSEWHERE = {"docs/options.md"}  # its snippets need a model for each: test_readme.py has them
PAGES = sorted({path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} - ELSEWHERE)
# What a page shows, and in comments what it takes to run it.
SNIPPET = re.compile(r"^(?:```python|<!-- python)\n(.*?)^(?:```|-->)$", flags=re.DOTALL | re.MULTILINE)


def snippets(page):
    return SNIPPET.findall((ROOT / page).read_text())


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries that pages are about
def test_the_snippets_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pbwn.axes._KNOWN", dict(pbwn.axes._KNOWN))
    names = {"__name__": "snippets"}
    for snippet in snippets(page):
        exec(snippet, names)


FILE = re.compile(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_commands_on_your_own_models_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for snippet in snippets("docs/how-to/your-own.md"):
        exec(snippet, {})
    page = (ROOT / "docs/how-to/your-own.md").read_text()
    for name, content in FILE.findall(page):
        (tmp_path / name).write_text(content)
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) > 6
    for command in commands:
        words = [sys.executable, "-m", "pbwn_repro", *command.split()[1:]]
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    report = (tmp_path / "runs" / "report.md").read_text()
    assert "Your runs: mymodels:build on digits" in report
    assert "| Tangent |" in report
    assert "(bits/char)" in report


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    built = subprocess.run(
        [*command, "-d", str(folder / "doctrees"), str(ROOT / "docs"), str(folder / "html")],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "html"


@pytest.mark.long
def test_the_site_builds_without_a_warning_and_its_links_lead_somewhere(site):
    for page in site.rglob("*.html"):
        for target in re.findall(r'(?:href|src)="([^"#?]+)[^"]*"', page.read_text()):
            if "://" not in target and not target.startswith(("mailto:", "data:")):
                assert (page.parent / target).exists(), f"{page.relative_to(site)} links to {target}"


@pytest.mark.long
def test_the_site_needs_no_network_to_be_read(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not re.findall(r'<(?:script|img|link rel="stylesheet")[^>]+(?:src|href)="https?://', text), page.name


@pytest.mark.long
def test_formulas_are_drawn_by_the_browser_itself(site):
    assert "<math" in (site / "explanation" / "method.html").read_text()


@pytest.mark.long
def test_the_api_page_describes_every_public_name(site):
    text = (site / "api.html").read_text()
    for name in pbwn.__all__:
        assert f'id="pbwn.{name}"' in text or f"pbwn.{name}" in text, name
