"""Attacks on what a job trains and releases. The epsilon that they prove is compared with the ledger's claim."""
