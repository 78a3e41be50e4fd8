"""Figures: for the page in two widths and two themes, and as SVG and PDF files."""
