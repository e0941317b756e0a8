"""Curves as SVG, and results as notebooks show them."""
