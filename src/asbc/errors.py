"""The one exception that tells a user what to mend."""


class InputError(ValueError):
    """Something the user handed in cannot be used; the message says what and how to mend it.

    Example:
        >>> from asbc import Run
        >>> try:
        ...     Run.open("no/such/run")
        ... except InputError as error:
        ...     print(error)
        run=no/such/run: no such folder
    """
