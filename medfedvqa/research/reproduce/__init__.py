"""The tables and figures of the founding papers: which of them are run here, how, and what differs."""
