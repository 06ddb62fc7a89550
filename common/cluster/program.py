"""Runs a program: its failures become one sentence and an exit code.

    python3 PartTwo/main.py --num-nodes 4; echo $?      # 2: --rank is missing
"""

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from common.cluster.ending import print_failure
from common.cluster.signals import listen_for_signals
from common.cluster.stopping import process_stop
from common.core.failures import Failure
from common.core.output import protect_output, require_output


def run_program(main: Callable[[], None]) -> NoReturn:
    """Calls `main` and exits: 0, or a failure's one sentence on standard error and its exit code.

    `--debug` anywhere on the command line adds the traceback. An exception that is not
    a `Failure` is a fault of this program and always shows its traceback. What nobody reads is not
    missed; a full disk that takes no output is a failure, unless `main` lets output be lost.
    """
    protect_output()
    listen_for_signals(process_stop())
    try:
        _call(main)
        require_output()
    except Failure as failure:
        if "--debug" in sys.argv:
            traceback.print_exc()
        print_failure(str(failure), failure.exit_code)
        _exit(failure.exit_code)
    _exit(0)


def _exit(code: int) -> NoReturn:
    """Ends this process; at once where threads may wait for ranks that an elastic run has lost."""
    elastic = sys.modules.get("common.cluster.elastic")
    if elastic is not None and elastic.has_lost():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _call(main: Callable[[], None]) -> None:
    """Calls a main, which may also end with sys.exit; again where it is to go on after a loss."""
    while True:
        try:
            return main()
        except SystemExit as end:
            if end.code:
                raise
            return None
        except Exception as error:
            if not _goes_on_after(error):
                raise


def _goes_on_after(error: Exception) -> bool:
    """Returns True if the run is elastic, and `error` means that ranks are lost."""
    elastic = sys.modules.get("common.cluster.elastic")  # not imported where no rank was joined
    return elastic is not None and elastic.goes_on_after(error)
