"""The documentation: every snippet runs, and the site builds without a warning or a broken link."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pbwn

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
OPTIONS = "docs/options.md"  # each line of its list needs a model of its own
# What a page shows, and in comments what it takes to run it.
SNIPPET = re.compile(r"^(?:```python|<!-- python)\n(.*?)^(?:```|-->)$", flags=re.DOTALL | re.MULTILINE)


def snippets(page):
    return SNIPPET.findall((ROOT / page).read_text())


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page) and page != OPTIONS])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries that pages are about
def test_the_snippets_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pbwn.axes._KNOWN", dict(pbwn.axes._KNOWN))
    names = {"__name__": "snippets"}
    for snippet in snippets(page):
        exec(snippet, names)


@pytest.mark.filterwarnings("ignore:.*neuron axes are unknown")
def test_each_option_runs_on_a_model_of_its_own_and_the_table_shown_is_the_table_printed(monkeypatch):
    monkeypatch.setattr("pbwn.axes._KNOWN", dict(pbwn.axes._KNOWN))
    setup, options, *others = snippets(OPTIONS)
    assert options.count("pbwn.attach(") == len(options.splitlines()) > 5
    for line in options.splitlines():
        exec(setup + line, {"__name__": "snippets"})
    names = {"__name__": "snippets"}
    exec(setup, names)
    [shown] = re.findall(r"^```text\n(.*?)\n```$", (ROOT / OPTIONS).read_text(), flags=re.DOTALL | re.MULTILINE)
    assert str(pbwn.select(names["model"])) == shown
    for snippet in others:
        exec(snippet, names)


LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [*PAGES, "README.md", "benchmarks/README.md"])
def test_links_have_a_text_and_lead_to_files_that_exist(page):
    """On a code host too, which shows nothing for `[](page.md)`."""
    for text, target in LINK.findall(CODE.sub("code", (ROOT / page).read_text())):
        assert text.strip(), f"the link to {target} shows nothing outside of the site"
        path, _, anchor = target.partition("#")
        if "://" not in target:
            assert not path or ((ROOT / page).parent / path).is_file(), target
            assert not anchor or anchor in anchors((ROOT / page).parent / path if path else ROOT / page), target


def anchors(page):
    """Those of a page's headings, as a code host makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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


@pytest.mark.long
def test_every_kept_figure_can_be_drawn_again(tmp_path):
    program = ROOT / "docs" / "_extensions" / "pictures.py"
    code = f"import runpy, pathlib; runpy.run_path({str(program)!r})['draw'](pathlib.Path({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kept = {path.name for path in (ROOT / "docs" / "figures").glob("*.svg")}
    assert {path.name for path in tmp_path.iterdir()} == kept - {"learning-rate-light.svg", "learning-rate-dark.svg"}
