"""Silence for the progress bars and notices of the library that loads text encoders and classifiers."""


def quiet_transformers() -> None:
    """Silence transformers."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
