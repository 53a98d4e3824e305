"""A pool that is full is no pool that fails: its jobs run as soon as there is room, and its CPUs do not stand idle."""

from collections.abc import Callable, Sequence

import pytest

from federation.engine.effects import Effect
from federation.engine.site import SiteEngine
from federation.errors import NoRoom
from federation.model.spec import JobSpec
from federation.model.states import End, Origin, Outcome
from federation.model.token import RANDOM_BYTES, Key, mint
from federation.store.store import Store
from tests.simulation.federation.backend import Backend
from tests.simulation.federation.story import Scale, Story, Wish
from tests.simulation.federation.world import EPOCH

CPUS, JOBS, RUNS_S = 2, 20, 1.0
WHOLE_S = JOBS / CPUS * RUNS_S
STEP_S = 0.5  # longest way of one call to the backend in a story
IDLE_S = 60.0


class Host(Backend):
    """It has no queue: what has no room is not taken. Each job runs for a second."""

    ended: Callable[[tuple[Key, ...]], None]
    full = 0  # times that it said so

    def submit(self, key: Key, spec: JobSpec) -> str:
        if len(self.running) == self.slots:
            self.full += 1
            raise NoRoom("no room for 1 CPUs now")
        self.truth.specs[key] = spec
        self._start(key)
        return "1"

    def _start(self, key: Key) -> None:
        self.claims[key] = "job"
        self.truth.starts[key] = self.world.now
        self.running.add(key)
        self.world.after(RUNS_S, lambda: self._is_over(key))

    def _is_over(self, key: Key) -> None:
        end = Outcome(end=End.EXITED, exit_code=0, started_at=1.0, ended_at=2.0)
        self._end(key, end)
        self.ended((key,))


def site(most_in_pool: int) -> tuple[Story, Host]:
    scale = Scale(sites=1, jobs=0, trouble_s=0.0, crashes=0, cuts=0, slots=CPUS, most_in_pool=most_in_pool)
    story = Story(seed=1, scale=scale)
    node = story.nodes["site0"]
    host = node.backend = Host(story.world, story.truth, CPUS)
    host.ended = node._look
    node.boot()
    story._quiet()
    return story, host


def submit(story: Story, jobs: int) -> Sequence[Wish]:
    node = story.nodes["site0"]
    tokens = [mint(int(EPOCH * 1000) + number, bytes([number] * RANDOM_BYTES)) for number in range(jobs)]
    wishes = [Wish(token=token, spec=JobSpec(user="ann"), home="site0") for token in tokens]

    def accept(engine: SiteEngine, store: Store) -> list[Effect]:
        for wish in wishes:
            engine.origin.accept(store, wish.token, wish.spec, node.now())
        return []

    story.wishes |= {wish.token: wish for wish in wishes}
    node.act(accept)
    return wishes


def done(story: Story, wishes: Sequence[Wish]) -> bool:
    found = [story.job(wish) for wish in wishes]
    return all(job is not None and job.state is Origin.DONE for job in found)


@pytest.mark.parametrize("most_in_pool", [1000, CPUS], ids=["they wait at the pool", "they wait at their origin"])
def test_jobs_that_find_no_room_run_as_soon_as_there_is_some(most_in_pool: int) -> None:
    story, _ = site(most_in_pool)
    wishes = submit(story, JOBS)
    story.world.run(lambda: done(story, wishes), WHOLE_S + IDLE_S)
    assert done(story, wishes)
    last = max(story.truth.ended_at.values())
    assert last < WHOLE_S + JOBS / CPUS * 2 * STEP_S, f"{last:.1f} s"
    assert len(story.truth.starts) == JOBS
    assert len({key.token for key in story.truth.starts}) == JOBS


def test_room_that_comes_unheard_is_found_in_a_while() -> None:
    """What took it was none of the site's own jobs."""
    story, host = site(1000)
    host.running |= {Key(mint(0, bytes(RANDOM_BYTES)), number) for number in range(1, CPUS + 1)}
    wishes = submit(story, JOBS)
    story.world.run(lambda: False, IDLE_S)
    assert not story.truth.starts
    tries = host.full
    story.world.run(lambda: False, 2 * IDLE_S)
    assert 0 < host.full - tries < 3 * IDLE_S  # not all the time
    host.running.clear()
    story.world.run(lambda: done(story, wishes), 2 * IDLE_S + WHOLE_S + IDLE_S)
    assert max(story.truth.ended_at.values()) - 2 * IDLE_S < 2 * WHOLE_S + 10.0
