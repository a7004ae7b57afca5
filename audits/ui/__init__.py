"""A small local web page to browse audit logs with."""

from audits.ui.server import AuditServer

__all__ = ["AuditServer"]
