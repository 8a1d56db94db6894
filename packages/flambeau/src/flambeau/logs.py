"""What is written while compiling: events of compiled callables and texts of stages, by topic.

FLAMBEAU_LOGS="recompiles,graph_breaks" writes those topics to stderr. Each line also goes to
Python's logger "flambeau.<topic>", whether or not the variable names it: at level INFO, or at
WARNING where the user asked for what did not happen. The topics
are `environment.LOG_TOPICS`.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from flambeau.environment import topics_named
from flambeau_capture.guards.kinds import guard_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from flambeau.environment import Environment
    from flambeau.report import Report
    from flambeau_capture.events import Event

_OF_EVENT = {
    "capture": "captures", "stored": "captures", "recompile": "recompiles",
    "break": "graph_breaks",
    "limit": "graph_breaks", "generalise": "dynamic", "eager": "graph_breaks",
    "eager_replay": "graph_breaks", "violated": "recompiles", "plain_launch": "cudagraphs",
    "cpu_launch": "cudagraphs", "ranks_differ": "recompiles",
}  # fmt: skip
_OF_STAGES = ("graph_code", "dynamic", "schedule", "perf_hints")
_WARNINGS = frozenset({"plain_launch"})
"""Events that are written unasked, by Python's logger: the user asked for what did not happen."""


MANY_RECOMPILES = 3
"""From so many recompiles of a callable on, each is a hint about its speed."""

_chosen: frozenset[str] | None = None
"""The topics that `set_logs` chose."""


def set_logs(**topics: bool | int) -> None:
    """Choose the topics that are written to stderr, for all compiled callables from now on:
    `set_logs(graph_breaks=True)`. A level of `logging` counts as True, as for torch's function;
    without arguments, FLAMBEAU_LOGS and TORCH_LOGS decide again.

    Raises ValueError for an unknown topic.
    """
    global _chosen
    known = {topic: topics_named([topic], "set_logs") for topic in topics}
    asked = [known[topic] for topic, value in topics.items() if value]
    _chosen = frozenset().union(*asked) if topics else None


def is_shown(topic: str, environment: Environment) -> bool:
    """Whether a topic is written to stderr."""
    return topic in (environment.logs if _chosen is None else _chosen)


def shows_stages(environment: Environment) -> bool:
    """Whether the user asked to see what stages of a compile say, which reading what is stored
    leaves out.
    """
    return any(is_shown(topic, environment) for topic in _OF_STAGES)


def emit(topic: str, text: str, environment: Environment, level: int = logging.INFO) -> None:
    """Write one message, if anyone wants it."""
    logging.getLogger(f"flambeau.{topic}").log(level, "%s", text)
    if level >= logging.WARNING:
        return
    if is_shown(topic, environment):
        sys.stderr.write(f"flambeau [{topic}] {text}\n")


def wanted(topic: str, environment: Environment) -> bool:
    """Whether `emit` would write, for texts that are costly to make."""
    return is_shown(topic, environment) or logging.getLogger(f"flambeau.{topic}").isEnabledFor(
        logging.INFO
    )


def listener(report: Report, environment: Environment) -> Callable[[Event], None]:
    """What a compiled callable tells its events to."""

    name = report.name

    def listen(event: Event) -> None:
        report.arrivals.append((time.perf_counter(), event))
        if report.folder is not None:
            report.folder.note(event)
        took = f" ({event.seconds:.3f} s)" if event.seconds else ""
        level = logging.WARNING if event.kind in _WARNINGS else logging.INFO
        text = f"{name}: {event.kind}: {event.text}{took}"
        served = event.kind == "stored" and event.failures
        emit("recompiles" if served else _OF_EVENT[event.kind], text, environment, level)
        recompiles = sum(noted.kind == "recompile" for _, noted in report.arrivals)
        if event.kind == "recompile" and recompiles >= MANY_RECOMPILES:
            often = f"{name}: recompiled {recompiles} times, now because {event.text}"
            emit("perf_hints", often, environment)
        if event.kind in ("plain_launch", "limit"):
            emit("perf_hints", text, environment)
        if event.entry is not None and wanted("guards", environment):
            for guard in event.entry.guards:
                where = f" (read at {guard.where})" if guard.where else ""
                emit("guards", f"{name}: {guard_text(guard)}{where}", environment)

    return listen
