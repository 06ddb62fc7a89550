"""Checks that a sentence states facts, however it is worded."""

import re


def says(sentence: object, *facts: object) -> bool:
    """True if each of `facts` occurs in `sentence` as a whole word, number, flag or path."""
    return all(re.search(rf"(?<![\w.]){re.escape(str(fact))}(?!\w)", str(sentence))
               for fact in facts)
