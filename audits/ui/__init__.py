"""A small local web page to browse audit logs with."""

from audits.ui.pages import AuditServer

__all__ = ["AuditServer"]
