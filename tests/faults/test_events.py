"""The same seed always draws the same events, and a soak that is long enough draws every kind of event."""

from itertools import islice

from tests.faults.events import EVENTS_ANYWHERE, EVENTS_ON_DISK, EVENTS_ON_S3, JOB_NAMES, SWEEP_OPTIONS, draw_rounds


def test_the_same_seed_draws_the_same_rounds_and_another_seed_draws_others() -> None:
    first, again, other = (list(islice(draw_rounds(seed), 20)) for seed in (4, 4, 5))
    assert first == again != other


def test_every_kind_of_event_occurs_if_its_store_allows() -> None:
    for seed in range(10):
        rounds = list(islice(draw_rounds(seed), 30))
        kinds = {
            store: {e.kind for r in rounds if r.store == store for phase in r.phases for e in phase.events}
            for store in ("s3", "folder")
        }
        assert kinds["s3"] | kinds["folder"] == {*EVENTS_ANYWHERE, *EVENTS_ON_S3, *EVENTS_ON_DISK}
        options = {phase.options for r in rounds for phase in r.phases}
        assert options == {*SWEEP_OPTIONS} and {job for r in rounds for phase in r.phases for job in phase.jobs} == {
            *JOB_NAMES
        }
        assert not kinds["folder"] & set(EVENTS_ON_S3) and not kinds["s3"] & set(EVENTS_ON_DISK)


def test_events_are_in_order_and_a_store_starts_fresh() -> None:
    for drawn in islice(draw_rounds(0), 50):
        assert drawn.phases[0].bench == "fresh" and all(phase.events for phase in drawn.phases)
        for phase in drawn.phases:
            assert [event.share for event in phase.events] == sorted(event.share for event in phase.events)
            assert all(0 <= event.share < 1 and event.seconds > 0 for event in phase.events)
