"""Encrypted backups of a site, and their restore."""
