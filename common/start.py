"""The first thing that every main does, before torch is imported."""

from dataclasses import replace

from common.core.console import tell_long_waits
from common.core.output import let_output_be_lost
from common.core.world import World
from common.options.command_line import parse_command_line
from common.run.other_runs import refuse_other_runs
from common.settings.resume import AUTO
from common.settings.settings import Settings


def start(part: str) -> tuple[Settings, World]:
    """The settings and the world of `part`; from now on the leader says what takes long.

    Raises UsageError for what cannot be meant, and where this process is the whole run and its
    folder holds another one. (One of several ranks joins the other ranks first, to tell them.)
    """
    settings, world = parse_command_line(part)
    let_output_be_lost()  # what a run has to say is in its logs too
    tell_long_waits(world)
    if world.is_elastic:
        from common.cluster.elastic import next_world
        from common.setup import rehearse

        world = next_world(world, settings, rehearse(settings),
                           settings.output_dir / part / f".group_rank{world.rank}.json")
        if world.attempt:
            settings = replace(settings, resume=settings.resume.then(AUTO))
    elif world.size == 1:
        refuse_other_runs(part, settings, world)
    return settings, world
