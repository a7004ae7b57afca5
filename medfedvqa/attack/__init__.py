"""Attacks on a job's model and releases. Their lower bounds on epsilon are compared with the ledger's claim."""
