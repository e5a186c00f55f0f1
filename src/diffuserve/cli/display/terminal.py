"""Graphics of terminals: whether they show images, and how, by what they say of themselves."""

from enum import StrEnum

from pydantic_settings import BaseSettings, SettingsConfigDict

_KITTY_PROGRAMS = ("ghostty", "wezterm")
_ITERM_PROGRAMS = ("iterm.app", "iterm2")


class Graphics(StrEnum):
    """Way of showing an image in a terminal."""

    KITTY = "kitty"  # kitty's own protocol
    ITERM = "iterm"  # iTerm2's
    BLOCKS = "blocks"  # half-block characters, two pixels each
    NONE = "none"


class TerminalVariables(BaseSettings):
    """Variables that terminals set for the programs in them."""

    model_config = SettingsConfigDict(frozen=True)

    term: str = ""
    term_program: str = ""
    lc_terminal: str = ""
    kitty_window_id: str = ""
    tmux: str = ""


def graphics_of(variables: TerminalVariables, color_system: str | None) -> Graphics:
    """Choose how images are shown where the output can have these colors, `None` for none.

    tmux passes no images on, so that within it there are half blocks.
    """
    if color_system is None:
        return Graphics.NONE
    programs = {variables.term_program.lower(), variables.lc_terminal.lower()}
    if not variables.tmux:
        is_kitty = variables.term == "xterm-kitty" or bool(variables.kitty_window_id)
        if is_kitty or programs & set(_KITTY_PROGRAMS):
            return Graphics.KITTY
        if programs & set(_ITERM_PROGRAMS):
            return Graphics.ITERM
    return Graphics.BLOCKS if color_system == "truecolor" else Graphics.NONE
