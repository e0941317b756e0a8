"""These tests need torch, which has an environment of its own: make test-torch."""

from importlib.metadata import PackageNotFoundError, version

try:
    version("torch")
    collect_ignore_glob: list[str] = []
except PackageNotFoundError:
    collect_ignore_glob = ["test_*.py"]
