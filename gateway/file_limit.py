"""How many connections this process has files for."""

import logging
import resource

SPARE = 256  # files beside those of connections: the store's, the journal's, the log's

logger = logging.getLogger("watermaster")


def connections_within(wanted: int) -> int:
    """As many as wanted, or as the system has files for: its limit is raised as far as it goes.

    The usual one of 1024 is below what is promised. Connections that took every file would keep
    usage from its journal and the store from being found again, and be cut without an answer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    files = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if files == needed:
        return wanted
    fewer = max(files - SPARE, files // 2)
    logger.warning(
        "this system allows %d open files, so %d connections and not server.max_connections = %d",
        files,
        fewer,
        wanted,
    )
    return fewer
