"""Publish the kept runs: `make results` writes their report, RESULTS.md, and the table in the README."""

from pathlib import Path

from pbwn_repro.report.markdown import methods_compared, summary, whole
from pbwn_repro.report.model import Report
from pbwn_repro.report.page import write
from pbwn_repro.report.sections import collect

RESULTS = Path(__file__).parent
ROOT = RESULTS.parent
BEGIN, END = "<!-- results: made by `make results` -->\n\n", "\n<!-- end of results -->"


def published(report: Report) -> dict[Path, str]:
    """The files that speak of the results, as they should read."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    before, _, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, "the README has lost the marks around its table of results"
    return {
        ROOT / "RESULTS.md": whole(report),
        ROOT / "README.md": before + BEGIN + summary(report) + methods_compared(report) + END + after,
    }


def main() -> None:
    """Write everything that is made from the runs."""
    report = collect(RESULTS)
    print(write(report))
    for path, text in published(report).items():
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
