"""Publish the kept runs: `make results` writes their report, RESULTS.md, and the numbers of the README and the docs."""

from pathlib import Path

from pbwn_repro.report.figures import side_by_side
from pbwn_repro.report.findings import findings, findings_table, learning_rates
from pbwn_repro.report.markdown import methods_compared, summary, whole
from pbwn_repro.report.model import Report
from pbwn_repro.report.page import write
from pbwn_repro.report.sections import collect

RESULTS = Path(__file__).parent
ROOT = RESULTS.parent
FIGURES = ROOT / "docs" / "figures"


def published(report: Report) -> dict[Path, str]:
    """The files that speak of the results, as they should read."""
    found = findings(report)
    measured, brief = (f"\n{findings_table(found, intervals=intervals)}\n\n" for intervals in (True, False))
    claims = f"\n{summary(report)}{methods_compared(report)}\n"
    methods = f"{methods_compared(report, losses=False)}\n"
    readme, page = ROOT / "README.md", ROOT / "docs" / "results.md"
    drawing = side_by_side("learning-rate", learning_rates(report))
    return {
        ROOT / "RESULTS.md": whole(report),
        readme: _filled(_filled(readme.read_text(encoding="utf-8"), "measured", brief), "methods", methods),
        page: _filled(_filled(page.read_text(encoding="utf-8"), "measured", measured), "results", claims),
        FIGURES / "learning-rate-light.svg": drawing.svg,
        FIGURES / "learning-rate-dark.svg": drawing.dark_svg,
    }


def _filled(text: str, mark: str, content: str) -> str:
    """The text with new content between two marks."""
    begin, end = f"<!-- {mark}: made by `make results` -->\n", f"<!-- end of {mark} -->"
    before, _, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    assert ended, f"the marks around {mark!r} are lost"
    return before + begin + content + end + after


def main() -> None:
    """Write everything that is made from the runs."""
    report = collect(RESULTS)
    print(write(report))
    for path, text in published(report).items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
