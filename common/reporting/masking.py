"""Takes out of a text what nobody should send: credentials, and the name of a home folder.

    python3 -c "from common.reporting.masking import *; print(Mask()('RUN_TOKEN=hunter22'))"
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

HIDDEN = "***"
NAMES = (r"[\w-]*(?:token|secret|passw(?:or)?d|passphrase|credential|cookie|key(?![a-z])"
         r"|auth(?:orization)?(?![a-z]))[\w-]*")
CREDENTIAL = re.compile(NAMES, re.IGNORECASE)
PATTERNS = tuple((re.compile(pattern, re.IGNORECASE | re.MULTILINE), by) for pattern, by in (
    # name=value, name: value and "name": "value"; and --name value
    (rf"({NAMES}[\"']?\s*[:=]\s*)(?:(?:bearer|basic) +)?(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;}}]+)",
     rf"\1{HIDDEN}"),
    (rf"(--?{NAMES} +)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s-]\S*)", rf"\1{HIDDEN}"),
    (r"(\w+://)[^\s/@]+@", rf"\1{HIDDEN}@"),
    # what GitHub, GitLab, Hugging Face, OpenAI, Slack and AWS give out, and JSON web tokens
    (r"\b(?:gh[oprsu]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-|AKIA)[\w-]{10,}"
     r"|\beyJ[\w-]+\.[\w-]+\.[\w-]+", HIDDEN),
    (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*-----|\Z)", HIDDEN),
    (r"(/home/|/Users/)[^/\s\"':]+", rf"\1{HIDDEN}")))
NO_SECRETS = ("true", "false", "none", "auto", "root")
SHORTEST = 4  # characters of a value that is taken for a secret wherever it stands


class Mask:
    """Hides, in any text, what an environment's credentials are, what looks like one, and who."""

    def __init__(self, environment: Mapping[str, str] = os.environ,
                 home: Path | None = None) -> None:
        self._home = str(home or Path.home())
        secrets = sorted({value for name, value in environment.items()
                          if CREDENTIAL.fullmatch(name) and _could_be_secret(value)}, key=len)
        self._secrets = [re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")
                         for value in reversed(secrets)]
        name = Path(self._home).name
        self._user = (re.compile(rf"(?<=/){re.escape(name)}(?![\w-])|\b{re.escape(name)}(?=@)")
                      if _could_be_secret(name, 1) else None)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = secret.sub(HIDDEN, text)
        if self._home != "/":
            text = re.sub(rf"{re.escape(self._home)}(?![\w-])", "~", text)
        if self._user:
            text = self._user.sub(HIDDEN, text)
        for pattern, by in PATTERNS:
            text = pattern.sub(by, text)
        return text


def _could_be_secret(value: str, shortest: int = SHORTEST) -> bool:
    return len(value) >= shortest and value.lower() not in NO_SECRETS
