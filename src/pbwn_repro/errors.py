"""The error for what a user can put right."""


class UsageError(ValueError):
    """A mistake in what was asked for; the message says what to change. Any other ValueError is a bug."""
