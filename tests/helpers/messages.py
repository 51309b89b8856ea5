"""Messages compared as a whole."""

from __future__ import annotations

import re

from helpers.commands import Run


def whole(message: str) -> str:
    """The pattern that matches this message and no longer or shorter one."""
    return rf"\A{re.escape(message)}\Z"


def line(message: str) -> Run:
    """What the command line makes of an error."""
    return Run(2, "", f"headroles: {message}\n")
