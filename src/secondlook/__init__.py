"""Calibrated confidence for image classifiers that return nothing but a label."""

__version__ = "0.1.0"
