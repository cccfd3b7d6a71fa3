"""Keep the text of exceptions out of the log."""

from __future__ import annotations

import logging
import sys
import traceback
from pathlib import Path


class ErrorTextFilter(logging.Filter):
    """Replace Kedro's "node failed" line, which quotes the exception, by its type and place.

    An exception can quote a record (``KeyError: 'the text'``). The terminal still shows it to the person who
    started the run; the log file, which is sent around when help is asked for, does not keep it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = sys.exc_info()[1]
        if record.levelno >= logging.ERROR and error is not None:
            last = traceback.extract_tb(error.__traceback__)[-1]
            node = (
                str(record.args[0]).partition(":")[0]
                if isinstance(record.args, tuple) and record.args
                else "?"
            )
            record.msg = "Node %s failed: %s at %s:%s"
            record.args = (node, type(error).__name__, Path(last.filename).name, last.lineno)
        return True


def hide_error_text() -> None:
    """Install the filter on the logger of Kedro's nodes, once."""
    logger = logging.getLogger("kedro.pipeline.node")
    if not any(isinstance(item, ErrorTextFilter) for item in logger.filters):
        logger.addFilter(ErrorTextFilter())
