"""Errors that a user can act on. No message carries a question, an answer, a patient or a value."""


class MedfedvqaError(Exception):
    """Base of every error that the commands print as one sentence instead of a traceback."""


class DataError(MedfedvqaError):
    """A data set is missing, incomplete or malformed; rows are named by index only."""


class BackboneError(MedfedvqaError):
    """A backbone is unknown, or its file does not fit its architecture."""


class ConfigError(MedfedvqaError):
    """An unknown method, option or site, or a value out of its range."""


class FederationError(MedfedvqaError):
    """A federation could not finish a job; names the site and its reason, if the site gave one."""


class SiteDatabaseError(FederationError):
    """A site's database is damaged, locked or of a newer version, or cannot be written: no job runs meanwhile."""


class BackupError(MedfedvqaError):
    """A backup of a site cannot be written or read, or must not replace existing files."""
