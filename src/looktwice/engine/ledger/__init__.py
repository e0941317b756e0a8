"""The ledger: what was asked, what came back and what it cost. A paid answer is never lost and never bought twice."""
