"""The founding papers' tables and figures as data, one file for each paper. No file imports torch."""
