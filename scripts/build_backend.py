"""Build backend for pip: installs this project as a link to this folder, and refuses to copy it.

    pip install -e .      # `from common import *` works anywhere
    pip install .         # error: a copy would lack ...
"""

import sys

SENTENCE = ("error: this project runs in its own folder, and a copy of its packages would lack the "
            "C++, the page and the scripts: pip install -r requirements.txt is what it needs, and "
            "pip install -e . makes it importable from elsewhere")


def refuse(*_, **__):
    sys.exit(SENTENCE)


get_requires_for_build_wheel = get_requires_for_build_sdist = build_wheel = build_sdist = refuse


def get_requires_for_build_editable(config_settings=None):
    return ["setuptools>=77"]  # only now: a refusal downloads nothing


def prepare_metadata_for_build_editable(*arguments):
    from setuptools import build_meta

    return build_meta.prepare_metadata_for_build_editable(*arguments)


def build_editable(*arguments):
    from setuptools import build_meta

    return build_meta.build_editable(*arguments)
