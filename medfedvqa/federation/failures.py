"""Which errors may be told."""

from audits import AuditError
from medfedvqa.errors import MedfedvqaError
from privacy import PrivacyError

ACTIONABLE = (MedfedvqaError, AuditError, PrivacyError)
"""Errors whose sentence may be shown to the user and sent to the server; of any other one only the name."""
