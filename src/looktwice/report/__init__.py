"""Self-contained HTML reports from saved votes and a profile, without queries or downloads."""

from looktwice.report.inputs import ReportInputs, saved_inputs
from looktwice.report.page import ENDINGS, page, write

__all__ = ["ENDINGS", "ReportInputs", "page", "saved_inputs", "write"]
