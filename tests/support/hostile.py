"""A schema's name that breaks all SQL in which it is not quoted as it should be."""

from __future__ import annotations

from typing import Final

# Quotes, marks of parameters and formats, dollar quotes, a comment, a backslash; 63 bytes are the most.
HOSTILE: Final = 'Wéird "na.me\'"; drop schema pulse -- $$ $pulse$ \\ %s :x {0} $1'
