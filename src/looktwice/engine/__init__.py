"""The query engine: the only package that spends money."""

from looktwice.engine.budget import TYPICAL_SIZE, Budget, Meter, Money, Spend, TokenMeter, micros, total
from looktwice.engine.channel import Channel
from looktwice.engine.check import Checkup, Estimate
from looktwice.engine.engine import QueryEngine
from looktwice.engine.ledger import maintenance
from looktwice.engine.ledger.ledger import MEMORY, OFF, POSTGRES, Ledger, close_ledger, open_ledger
from looktwice.engine.ledger.schema import Alarm
from looktwice.engine.ledger.transaction import Transaction
from looktwice.engine.limits import Polling, RetryPolicy
from looktwice.engine.query import (
    NO_SCREEN,
    AnswerEvent,
    Cause,
    OnAnswer,
    Progress,
    Rounds,
    Scores,
    Screen,
    Unscored,
    askable,
    lacks_budget,
)
from looktwice.engine.runner import Settings
