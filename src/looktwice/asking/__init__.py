"""Questions → answers, each paid for once: budget, pace, retries, and the ledger that keeps them."""
