"""The page in Chromium: drawn, complete, readable on a desk, on a phone, in the dark and on paper."""

import base64
import json
import shutil
from pathlib import Path

import pytest

from pbwn_repro.report.markdown import texts
from pbwn_repro.report.page import page
from pbwn_repro.report.sections import collect
from repro.report.made import rendered, report

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
# Every element with text of its own, on screen, whose colour is too close to what is behind it.
TOO_FAINT = """
const channels = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
const linear = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const light = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
const behind = (element) => {
  for (; element; element = element.parentElement) {
    const found = channels(getComputedStyle(element).backgroundColor);
    if (found.length && found[3] !== 0) return found;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("body *")].filter((element) => {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.getClientRects().length) return false;
  const style = getComputedStyle(element);
  const text = light(channels(element.namespaceURI.endsWith("svg") ? style.fill : style.color));
  const ground = light(behind(element));
  return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05) < 4.5;
}).map((element) => element.textContent.trim().slice(0, 40));
"""
TOO_WIDE = (
    "return [...document.querySelectorAll('.scroll, pre')].filter((box) => box.scrollWidth > box.clientWidth)"
    ".map((box) => box.innerText.slice(0, 60));"
)
KEPT_RUNS = Path(__file__).parents[3] / "results"
OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = arguments[0]; });"


@pytest.fixture(scope="module")
def whole():
    return report()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    if not (driver and chromium):
        pytest.skip("no browser: install chromium and chromium-driver to test the page as readers see it")
    from selenium import webdriver

    folder = tmp_path_factory.mktemp("browser")
    (folder / "report.html").write_text(rendered())
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        opened.get((folder / "report.html").as_uri())
        yield opened
    finally:
        opened.quit()


@pytest.fixture
def look(browser):
    """Set what the reader has: the width of the screen, light or dark, screen or paper, all details open or closed."""

    def set_up(*, width=1280, scheme="light", media="screen", details=True):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
        browser.execute_script(OPEN_ALL, details)
        return browser

    return set_up


@pytest.fixture(scope="module")
def kept_page(tmp_path_factory):
    file = tmp_path_factory.mktemp("kept") / "report.html"
    file.write_text(page(collect(KEPT_RUNS)))
    return file.as_uri()


@pytest.fixture
def kept(browser, kept_page):
    """The report of the runs in results/, opened for one test."""
    before = browser.current_url
    browser.get(kept_page)
    yield browser
    browser.get(before)


def test_the_page_opens_without_complaints_and_without_requests(browser):
    assert browser.get_log("browser") == []
    messages = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    sent = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    asked = {each["request"]["url"] for each in sent if each["documentURL"] == browser.current_url}
    assert {url for url in asked if not url.startswith("data:")} == {browser.current_url}


@pytest.mark.parametrize("width", [360, 1280])
def test_every_figure_is_drawn_once_and_has_a_size(look, whole, width):
    sizes = look(width=width).execute_script(
        "return [...document.querySelectorAll('figure')].map((figure) => [...figure.querySelectorAll('svg')]"
        ".map((svg) => svg.getBoundingClientRect()).filter((box) => box.width * box.height)"
        ".map((box) => [box.width, box.height]));"
    )
    assert len(sizes) >= len(whole.sections)
    for [[across, down]] in sizes:
        assert 250 < across <= max(width, 480)
        assert down > 80


def test_every_cell_can_be_seen(look, whole):
    shown = look().execute_script(
        "return [...document.querySelectorAll('.results')].map((table) => "
        "[...table.querySelectorAll('tbody tr')].map((row) => "
        "[...row.querySelectorAll('td')].map((cell) => cell.innerText)));"
    )
    tables = [(section.table, section.artefact.table.others) for section in whole.sections if section.table]
    for (table, quoted), rows in zip(tables, shown, strict=True):
        for row, cells in zip(table.rows, rows, strict=True):
            for column, cell in zip(table.columns, cells, strict=True):
                ours, theirs = texts(table.cells[row.key, column])
                *first, last = cell.split("\n")
                assert first == ([] if row.key in quoted else [ours])  # nothing of what is quoted is run here
                assert theirs in last


@pytest.mark.parametrize("details", [True, False])
def test_nothing_sticks_out_on_a_phone(look, details):
    assert look(width=360, details=details).execute_script("return document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("width", [400, 1280])
def test_the_text_of_figures_is_large_enough_to_be_read(look, width):
    sizes = look(width=width).execute_script(
        "return [...document.querySelectorAll('.drawing svg')].map((svg) => "
        "svg.getBoundingClientRect().width / svg.viewBox.baseVal.width * 8.5);"
    )
    assert min(sizes) > 10


@pytest.mark.parametrize("width", [400, 1280])
def test_no_table_and_no_listing_is_wider_than_its_box(look, width):
    assert not look(width=width).execute_script(TOO_WIDE)


@pytest.mark.parametrize("width", [400, 1280])
def test_no_table_of_the_kept_runs_is_wider_than_its_box(look, kept, width):
    assert not look(width=width).execute_script(TOO_WIDE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_ground(look, scheme):
    assert look(scheme=scheme).execute_script(TOO_FAINT) == []


def test_the_page_is_dark_where_the_reader_wants_it(look):
    ground = "return getComputedStyle(document.body).backgroundColor"
    assert look(scheme="light").execute_script(ground) != look(scheme="dark").execute_script(ground)


def test_on_paper_everything_is_unfolded_and_dark_on_white(look):
    opened = look(media="print", scheme="dark", details=False)
    assert opened.execute_script(TOO_FAINT) == []
    hidden = opened.execute_script(
        "return [...document.querySelectorAll('details > :not(summary)')].filter((each) => !each.offsetHeight).length;"
    )
    assert hidden == 0
    printed = opened.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
