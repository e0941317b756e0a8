"""One self-contained page from saved votes and a profile; asks nothing and fetches nothing."""

from secondlook.report.material import Material
from secondlook.report.page import page, write

__all__ = ["Material", "page", "write"]
