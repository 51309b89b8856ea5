"""Make the local links and pictures of a text absolute, for an index of packages, which has no repository beside it.

python .ci/absolute_links.py README.md OWNER/NAME v0.1.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def absolute(text: str, repository: str, ref: str) -> str:
    """Return the text with pictures from the repository's raw files, and links to its pages."""

    def link(found: re.Match[str]) -> str:
        picture, label, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found[0]
        host = "https://raw.githubusercontent.com/{}/{}/" if picture else "https://github.com/{}/blob/{}/"
        return f"{picture}[{label}]({host.format(repository, ref)}{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, text)


if __name__ == "__main__":
    path, repository, ref = sys.argv[1:]
    Path(path).write_text(absolute(Path(path).read_text(encoding="utf-8"), repository, ref), encoding="utf-8")
