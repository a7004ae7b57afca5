"""Encrypted backups of a site, and what takes them back."""
