"""What of ScienceWorld's texts is shown. Standard library only: it runs at both ends."""

from __future__ import annotations

import re

ITEM = re.compile(r"^\t(?:an? |the )?(.*?)\.?\s*$")
DOOR, UNSEEN = re.compile(r"[Aa] door to the "), ("agent", "substance called air")


def full(text: str) -> str:
    """As the package says it."""
    return text


def short(text: str) -> str:
    """A room as one line, for a small policy: no doors (one can teleport), no air; what is off or closed goes without saying."""
    room = re.match(r"This (?:room|outside location) is called the ([\w ]+)\.", text)
    if not room:
        return text
    seen = [match[1] for line in text.splitlines() if (match := ITEM.match(line)) and not DOOR.search(line)]
    return f"{room[1]}: " + "; ".join(_shorter(item) for item in seen if item not in UNSEEN)


def _shorter(item: str) -> str:
    item = re.sub(r", which is (?:turned off|off|deactivated)|, currently reading [^,;]*", "", item)
    item = re.sub(r"\.? The [\w ]+ door is closed\.?|\.? ?(?:In|On) the [\w ]+ is: nothing\.?|\(containing nothing\)", "", item)
    item = re.sub(r", which is (?:turned )?(on|activated)", r" (\1)", item)
    item = re.sub(r"\.? (?:In|On) the [\w ]+ is: ", ": ", item)
    return re.sub(r"(^|: |, |\(containing )(?:an? |the )?(?:substance called )?(?=\w)", r"\1", item).strip(" .")


VIEWS = {"full": full, "short": short}
