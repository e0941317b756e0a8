"""Self-contained HTML reports from saved votes and a profile, without queries or downloads."""

from looktwice.report.inputs import ReportInputs
from looktwice.report.page import ENDINGS, page, write
from looktwice.report.saved import saved_inputs

__all__ = ["ENDINGS", "ReportInputs", "page", "saved_inputs", "write"]
