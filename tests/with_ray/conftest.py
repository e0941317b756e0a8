"""These tests need Ray, which has an environment of its own: make test-fleet."""

from importlib.metadata import PackageNotFoundError, version

try:
    version("ray")
    collect_ignore_glob: list[str] = []
except PackageNotFoundError:
    collect_ignore_glob = ["test_*.py"]
