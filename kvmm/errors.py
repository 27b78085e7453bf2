"""The one exception type a user of kvmm is meant to see."""


class KVMMError(ValueError):
    """Something the user can put right.

    The message is one line that says what is wrong and what to do. The command line prints it and exits with code 2,
    the browser app shows it and keeps the conversation; library code may catch it as a ``ValueError``.
    """
