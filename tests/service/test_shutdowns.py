"""Every ordinary end of a command closes its ledger; `make soak` has the long form."""

from __future__ import annotations

from itertools import cycle
from signal import Signals

import pytest
from support import shutdowns

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "number"), list(zip(shutdowns.COMMANDS, cycle(shutdowns.SIGNALS))))
def test_a_signal_under_load_loses_no_answer_and_leaves_no_log(kind: str, number: Signals) -> None:
    shutdowns.end(kind, number, rounds=1, seed=0)
