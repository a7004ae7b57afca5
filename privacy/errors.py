"""Errors of this package; their texts hold settings and budgets, never a patient, a path or a value of data."""


class PrivacyError(Exception):
    """Base of every error of this package."""


class SettingsError(PrivacyError):
    """A job's privacy settings contradict themselves, or a model cannot be trained under them."""


class AccountingError(PrivacyError):
    """Parameters outside of what can be accounted for."""


class NewerMechanism(AccountingError):
    """An event of a mechanism, or of a use of one, that this version does not know."""

    def __init__(self) -> None:
        super().__init__("an event names what this version of the mechanisms lacks: use the version that wrote it")
