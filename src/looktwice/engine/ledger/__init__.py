"""The ledger: queries, answers and costs. A paid answer is never lost and never bought twice."""
