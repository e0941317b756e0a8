"""Every ordinary end of a command closes its ledger; `make soak` has the long form."""

from __future__ import annotations

import pytest
from support import shutdowns

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", shutdowns.COMMANDS)
def test_a_signal_under_load_loses_no_answer_and_leaves_no_log(kind: str) -> None:
    for seed, number in enumerate(shutdowns.SIGNALS):
        shutdowns.end(kind, number, 1, seed)
