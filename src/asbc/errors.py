"""The one exception that tells a user what to mend."""


class InputError(ValueError):
    """Something the user handed in cannot be used; the message says what and how to mend it.

    Example:
        >>> from asbc import Run
        >>> try:
        ...     Run.open("nowhere")
        ... except InputError as error:
        ...     print(error)
        run=nowhere: no such folder
    """
