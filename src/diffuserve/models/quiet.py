"""Loading a model without the libraries' own progress bars and notices."""


def quiet_libraries() -> None:
    from diffusers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    quiet_transformers()


def quiet_transformers() -> None:
    """For whoever loads no diffusion model: importing diffusers takes seconds."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
