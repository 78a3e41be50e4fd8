"""Publish the runs of this folder: `make results` writes the report, RESULTS.md, and the results in README and docs."""

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
    """Return the content of every file that shows results."""
    found = findings(report)
    measured, brief = (f"\n{findings_table(found, intervals=intervals)}\n\n" for intervals in (True, False))
    claims = f"\n{summary(report)}{methods_compared(report)}\n"
    methods = f"{methods_compared(report, losses=False)}\n"
    readme, page = ROOT / "README.md", ROOT / "docs" / "results.md"
    drawing = side_by_side("learning-rate", learning_rates(report))
    return {
        ROOT / "RESULTS.md": whole(report),
        readme: _fill(_fill(readme.read_text(encoding="utf-8"), "measured", brief), "methods", methods),
        page: _fill(_fill(page.read_text(encoding="utf-8"), "measured", measured), "results", claims),
        FIGURES / "learning-rate-light.svg": drawing.svg,
        FIGURES / "learning-rate-dark.svg": drawing.dark_svg,
    }


def _fill(text: str, name: str, content: str) -> str:
    """Replace the content between the two marks of this name."""
    start, end = f"<!-- {name}: made by `make results` -->\n", f"<!-- end of {name} -->"
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    assert found, f"the marks around {name!r} are missing"
    return before + start + content + end + after


def main() -> None:
    """Write the report and every published file."""
    report = collect(RESULTS)
    print(write(report))
    for path, text in published(report).items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
