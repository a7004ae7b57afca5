"""Attacks on what a job really trains and releases: what they prove stands beside what the ledger claims."""
