"""One self-contained page from saved votes and a profile; asks nothing and fetches nothing."""

from looktwice.report.inputs import MAX_ERROR, ReportInputs
from looktwice.report.page import ENDINGS, page, write

__all__ = ["ENDINGS", "MAX_ERROR", "ReportInputs", "page", "write"]
