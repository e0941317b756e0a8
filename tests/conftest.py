"""Settings that hold for every test."""

from hypothesis import settings

# Machines are shared: a slow moment must not fail a test of what is right.
settings.register_profile("looktwice", deadline=None, derandomize=True)
settings.load_profile("looktwice")
