"""Counters that survive a worker, gauges that do not, and a fast way to write both."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.observe.metrics import DirectMetric, Metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


REQUESTS = ("larkfield_requests_total", (("route", "/route"), ("status", "200")))


def test_workers_add_up_and_a_replacement_goes_on(tmp_path: Path) -> None:
    first, second = Metrics(tmp_path, 0), Metrics(tmp_path, 1)
    for _ in range(3):
        second.requests.inc("/route", "200")
    first = Metrics(tmp_path, 0)
    first.requests.inc("/route", "200")
    assert samples(first)[REQUESTS] == samples(second)[REQUESTS] == 4
    replacement = Metrics(tmp_path, 0)
    replacement.requests.inc("/route", "200")
    assert samples(second)[REQUESTS] == 5


def test_gauges_of_a_replaced_worker_start_anew(tmp_path: Path) -> None:
    old = Metrics(tmp_path, 0)
    old.in_flight.set(7)
    assert samples(old)["larkfield_in_flight_requests", ()] == 7
    assert samples(Metrics(tmp_path, 0))["larkfield_in_flight_requests", ()] == 0


def test_the_fast_way_fills_the_same_buckets_as_the_library(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, 0)
    buckets = [0.1, 0.5, 1.0]
    slow = metrics.histogram("slow", "x", buckets, "kind")
    fast = DirectMetric(metrics.histogram("fast", "x", buckets, "kind"))
    for value in (0.0, 0.1, 0.100001, 0.5, 0.7, 1.0, 3.0):
        slow.labels("a").observe(value)
        fast.observe(value, "a")
    found = samples(metrics)
    for suffix in ("_sum", "_count"):
        assert found["larkfield_slow" + suffix, (("kind", "a"),)] == pytest.approx(
            found["larkfield_fast" + suffix, (("kind", "a"),)]
        )
    for bound in ("0.1", "0.5", "1.0", "+Inf"):
        labels = (("kind", "a"), ("le", bound))
        assert found["larkfield_slow_bucket", labels] == found["larkfield_fast_bucket", labels]


def test_a_file_that_grows_keeps_what_was_counted(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, 0)
    metrics.requests.inc("/route", "200")
    many = DirectMetric(metrics.counter("many", "x", "label"))
    for _ in range(2):
        for number in range(3000):
            many.inc(f"value-{number}")
    metrics.requests.inc("/route", "200")
    found = samples(metrics)
    assert found[REQUESTS] == 2
    assert all(found["larkfield_many_total", (("label", f"value-{n}"),)] == 2 for n in range(0, 3000, 500))


def test_names_follow_the_conventions(tmp_path: Path) -> None:
    families = list(text_string_to_metric_families(Metrics(tmp_path, 0).render().decode()))
    assert families
    for family in families:
        assert family.name.startswith("larkfield_")
        assert family.documentation
        assert not family.name.endswith(("_ms", "_milliseconds", "_count"))


def test_the_files_have_their_blocks_before_they_are_written(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, 0)
    metrics.reserve_space()
    files = [path.stat() for path in tmp_path.glob("*.db")]
    assert files
    assert all(file.st_blocks * 512 >= file.st_size for file in files)


def test_a_full_disk_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(OSError, match="16 MB"):
        Metrics(tmp_path, 0)
