"""A report as files: the page, Markdown, CSV and LaTeX tables."""
