"""Errors of this package; their texts hold settings and budgets, never a patient, a path or a value of data."""


class PrivacyError(Exception):
    """Base of every error of this package."""


class SettingsError(PrivacyError):
    """A job's privacy settings contradict themselves, or a model cannot be trained under them."""


class AccountingError(PrivacyError):
    """Parameters outside of what can be accounted for."""
