"""Silence for the progress bars and notices of the libraries that load models."""


def quiet_libraries() -> None:
    """Silence diffusers and transformers."""
    from diffusers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    quiet_transformers()


def quiet_transformers() -> None:
    """Silence transformers alone: importing diffusers takes seconds, and not every model needs it."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
