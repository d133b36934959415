"""The database of decisions and feedback, on SQLite and on PostgreSQL: one code path, both tested."""

from __future__ import annotations

import getpass
import os
import pwd
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from service.app import create_app
from service.client import Client
from service.feedback import endpoint
from service.feedback.decision_log import DecisionLog
from service.feedback.migrations import decisions, feedback, migrate, schema_version, version_of
from service.feedback.rows import Decided, StoreUnavailable
from service.feedback.store import Store, connect
from service.settings import Settings
from service.tools import processes
from service.tools.processes import wait_for
from tests.service.conftest import until
from tests.service.feedback.database import row_counts


def decided(number: int, *, team: str = "payment", text: str | None = None, age: float = 0.0) -> Decided:
    return Decided(
        request_id=f"r-{number}",
        ticket_id=f"T-{number}",
        predicted=team,
        decision="route",
        confidence=0.9,
        version="1",
        tokens=12,
        unknown=1,
        decided_at=time.time() - age,
        text=text,
    )


def postgres_binaries() -> Path:
    found = [shutil.which("initdb"), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")))]
    paths = [Path(path).parent for path in found if path and (Path(path).parent / "pg_ctl").exists()]
    if not paths:
        pytest.skip("PostgreSQL's initdb and pg_ctl are not installed here")
    return paths[-1]


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    """A private PostgreSQL cluster on a free port, run by a user that is not root (it refuses root)."""
    pytest.importorskip("psycopg", reason="the extra `postgres` (psycopg) is not installed")
    binaries = postgres_binaries()
    user = getpass.getuser()
    as_user: list[str] = []
    if os.geteuid() == 0:
        user = next((entry.pw_name for entry in pwd.getpwall() if entry.pw_name == "postgres"), "nobody")
        as_user = ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups"]
    folder = Path(tempfile.mkdtemp(prefix="larkfield-postgres-", dir="/tmp"))
    shutil.chown(folder, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def control(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*as_user, str(binaries / program), *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=(folder / "log").open("ab"),
            stderr=subprocess.STDOUT,
            timeout=300,
        )
        assert done.returncode == 0, (folder / "log").read_text()

    data = str(folder / "data")
    try:
        control("initdb", "-D", data, "-U", "larkfield", "--auth=trust", "--no-sync", "-E", "UTF8")
        options = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder}"
        control("pg_ctl", "-D", data, "-o", options, "-w", "start")
        yield f"postgresql://larkfield@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run(
            [*as_user, str(binaries / "pg_ctl"), "-D", data, "-m", "immediate", "stop"],
            cwd=folder,
            capture_output=True,
        )
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'state' / 'feedback.db'}"
        return
    address = request.getfixturevalue("postgres_url")
    yield address
    engine = connect(address)
    with engine.begin() as connection:
        feedback.drop(connection, checkfirst=True)
        decisions.drop(connection, checkfirst=True)
        schema_version.drop(connection, checkfirst=True)
    engine.dispose()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url)
    yield store
    store.close()


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'feedback.db'}")
    yield store
    store.close()


def test_a_source_keeps_two_desks_ids_apart(store: Store) -> None:
    ours = decided(1)._replace(ticket_id="7", source="rt", predicted="payment")
    theirs = decided(2)._replace(ticket_id="7", source="zammad", predicted="returns")
    store.add_decisions([ours, theirs, decided(3)._replace(ticket_id="7", predicted="account")])
    named = {
        source: store.add_feedback("payment", ticket_id="7", source=source) for source in ("rt", "zammad")
    }
    assert {source: receipt.predicted for source, receipt in named.items()} == {
        "rt": "payment",
        "zammad": "returns",
    }
    assert store.add_feedback("payment", ticket_id="7").predicted == "account"
    assert store.add_feedback("payment", ticket_id="7", source="other").predicted is None
    assert store.add_feedback("returns", request_id="r-1").status == "changed", "its source is known"
    assert row_counts(store)["feedback"] == 4


def test_feedback_can_be_taken_back(store: Store) -> None:
    store.add_decisions([decided(1)])
    store.add_feedback("returns", ticket_id="T-1")
    assert store.remove_feedback(request_id="r-1")
    assert not store.remove_feedback(ticket_id="T-1")
    assert row_counts(store) == {"decisions": 1, "feedback": 0}


def test_the_schema_goes_back_and_forth_without_losing_feedback(url: str, store: Store) -> None:
    store.add_decisions([decided(1), decided(2)._replace(source="rt", reasons="too_short")])
    store.add_feedback("payment", ticket_id="T-1")
    store.add_feedback("returns", ticket_id="T-2", source="rt")
    store.close()
    engine = connect(url)
    try:
        with engine.begin() as connection:
            assert (version_of(connection), migrate(connection, 1)) == (2, 2)
        with engine.begin() as connection:
            assert version_of(connection) == 1
            names = {column["name"] for column in sa.inspect(connection).get_columns("feedback")}
            assert "source" not in names
            # As a release with version 1 writes it.
            connection.execute(
                sa.text(
                    "INSERT INTO feedback (key, ticket_id, actual, received_at) "
                    "VALUES ('t:T-3', 'T-3', 'account', 1.0)"
                )
            )
    finally:
        engine.dispose()
    again = Store(url)
    assert row_counts(again) == {"decisions": 2, "feedback": 3}
    kept = {(row.ticket_id, row.source): row.actual for row in again.feedback_with_text()}
    assert kept == {("T-1", None): "payment", ("T-2", "rt"): "returns", ("T-3", None): "account"}
    assert again.add_feedback("returns", ticket_id="T-2", source="rt").status == "unchanged"
    again.close()


def test_a_database_of_a_newer_release_is_left_alone(url: str, store: Store) -> None:
    store.add_decisions([decided(1)])
    store.close()
    engine = connect(url)
    with engine.begin() as connection:
        connection.execute(sa.update(schema_version).values(version=99))
    engine.dispose()
    later = Store(url)
    with pytest.raises(StoreUnavailable, match=r"schema version 99, this program knows versions up to 2"):
        later.recent_decisions("1", 5)
    later.close()


def test_feedback_is_joined_to_its_decision(store: Store) -> None:
    store.add_decisions([decided(1), decided(2, team="returns")])
    receipt = store.add_feedback("payment", ticket_id="T-1")
    assert (receipt.status, receipt.predicted, receipt.confidence) == ("created", "payment", 0.9)
    receipt = store.add_feedback("account", request_id="r-2")
    assert (receipt.status, receipt.ticket_id, receipt.predicted) == ("created", "T-2", "returns")


def test_feedback_is_idempotent_and_the_last_team_counts(store: Store) -> None:
    store.add_decisions([decided(1)])
    assert [store.add_feedback("returns", ticket_id="T-1").status for _ in range(3)] == [
        "created",
        "unchanged",
        "unchanged",
    ]
    receipt = store.add_feedback("returns", request_id="r-1")
    assert receipt.status == "unchanged", "the same ticket, named by its request"
    assert store.add_feedback("account", ticket_id="T-1").status == "changed"
    [row] = store.recent_feedback("1", 10)
    assert (row.predicted, row.actual) == ("payment", "account")
    assert row_counts(store) == {"decisions": 1, "feedback": 1}


def test_a_nul_in_an_id_or_a_text_stops_nothing(store: Store) -> None:
    """PostgreSQL takes no NUL: one such ticket would have held up all that came after it, for ever."""
    store.add_decisions([decided(1)._replace(ticket_id="a\0b", text="kettle\0leaks"), decided(2)])
    assert store.add_feedback("payment", ticket_id="a\0b").predicted == "payment"
    assert store.add_feedback("payment", ticket_id="T-2").predicted == "payment"
    assert store.add_feedback("payment", request_id="r\0").status == "created"


def test_rows_that_the_database_never_takes_are_dropped_and_counted(postgres_url: str) -> None:
    store = Store(postgres_url)
    dropped: list[int] = []
    log = DecisionLog(lambda: store, on_dropped=dropped.append)
    log.record(decided(1)._replace(tokens=2**40))
    log.flush()
    log.record(decided(2))
    log.flush()
    assert dropped == [1]
    assert not log.waiting
    assert row_counts(store)["decisions"] == 1
    with store.engine.begin() as connection:
        feedback.drop(connection, checkfirst=True)
        decisions.drop(connection, checkfirst=True)
        schema_version.drop(connection, checkfirst=True)
    store.close()


def test_the_latest_decision_of_a_ticket_counts(store: Store) -> None:
    store.add_decisions([decided(1, team="payment"), decided(1, team="warranty")])
    assert store.add_feedback("warranty", ticket_id="T-1").predicted == "warranty"


def test_feedback_before_its_decision_is_kept_and_matched_later(store: Store) -> None:
    assert store.add_feedback("payment", ticket_id="T-9").predicted is None
    assert store.recent_feedback("1", 10) == []
    assert store.match_late() == 0
    store.add_decisions([decided(9)])
    assert store.match_late() == 1
    [row] = store.recent_feedback("1", 10)
    assert (row.predicted, row.actual, row.decision) == ("payment", "payment", "route")


def test_a_change_after_the_decision_was_pruned_keeps_what_was_stored(store: Store) -> None:
    store.add_decisions([decided(1, age=10 * 86400)])
    store.add_feedback("payment", ticket_id="T-1")
    assert store.prune(keep_days=5, text_days=1, most_decisions=10**6)["decisions"] == 1
    assert store.add_feedback("returns", ticket_id="T-1").status == "changed"
    [row] = store.recent_feedback("1", 10)
    assert (row.predicted, row.actual) == ("payment", "returns")


def test_prune_by_age_by_number_and_text_first(store: Store) -> None:
    store.add_decisions([decided(n, age=n * 86400, text="my kettle leaks") for n in (9, 6, 3, 0)])
    gone = store.prune(keep_days=7, text_days=2, most_decisions=10**6)
    assert gone == {"texts": 3, "decisions": 1, "feedback": 0}
    with store.transaction(reads_only=True) as connection:
        left = connection.execute(sa.select(decisions.c.ticket_id, decisions.c.text).order_by("row")).all()
    assert [tuple(row) for row in left] == [("T-6", None), ("T-3", None), ("T-0", "my kettle leaks")]
    assert store.prune(keep_days=7, text_days=2, most_decisions=1)["decisions"] == 2
    assert row_counts(store)["decisions"] == 1


def test_text_is_exported_only_while_it_is_kept(store: Store) -> None:
    store.add_decisions([decided(1, text="charged twice"), decided(2)])
    store.add_feedback("payment", ticket_id="T-1")
    store.add_feedback("returns", ticket_id="T-2")
    assert [(row.actual, row.text) for row in store.feedback_with_text()] == [
        ("payment", "charged twice"),
        ("returns", None),
    ]
    assert store.feedback_with_text(since=time.time() + 1) == []


def test_many_workers_at_once_lose_and_double_nothing(url: str) -> None:
    """Six stores, as six workers have them, create the tables and write at the same moment."""
    stores = [Store(url) for _ in range(6)]

    def work(worker: int) -> list[str]:
        stores[worker].add_decisions([decided(worker * 100 + n) for n in range(20)])
        return [stores[worker].add_feedback("payment", ticket_id=f"T-{n}").status for n in range(25)]

    with ThreadPoolExecutor(6) as pool:
        statuses = Counter(status for answers in pool.map(work, range(6)) for status in answers)
    assert statuses == {"created": 25, "unchanged": 125}
    assert row_counts(stores[0]) == {"decisions": 120, "feedback": 25}
    for store in stores:
        store.close()


def test_sqlite_flushes_before_it_answers(sqlite_store: Store) -> None:
    with sqlite_store.transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2, "FULL"
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_the_service_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    """Two replicas share one database: either takes the feedback on what the other one answered."""
    with (
        processes.router(tmp_path / "one", feedback_url=postgres_url) as one,
        processes.router(tmp_path / "two", feedback_url=postgres_url) as two,
    ):
        with Client(one.url, timeout_seconds=60) as here, Client(two.url, timeout_seconds=60) as there:
            answer = here.route("My card was charged twice", ticket_id="P-1")
            store = Store(postgres_url)
            wait_for("the decision", lambda: row_counts(store)["decisions"], 240)
            taken = there.feedback(answer["team"], ticket_id="P-1")
            assert (taken["status"], taken["correct"]) == ("created", True)
            assert here.feedback(answer["team"], ticket_id="P-1")["status"] == "unchanged"
    with store.transaction() as connection:
        connection.execute(sa.delete(feedback))
        connection.execute(sa.delete(decisions))
    store.close()


WRITER = """
import sys
from service.feedback.store import Store
store = Store(sys.argv[1])
for number in range(int(sys.argv[2]), 10**9):
    store.add_feedback("payment", ticket_id=f"T-{number}")
    print(number, flush=True)
"""


def test_kill_9_loses_nothing_acknowledged(url: str) -> None:
    """Five writers, each killed at a random moment; every acknowledged ticket must be there."""
    acknowledged: list[int] = []
    chance = random.Random(7)
    for round_ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, url, str(round_ * 100_000)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(chance.randrange(1, 40))]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        acknowledged += [int(line) for line in lines if line.endswith("\n")]
    store = Store(url)
    with store.transaction(reads_only=True) as connection:
        kept = set(connection.execute(sa.select(feedback.c.ticket_id)).scalars())
    assert len(acknowledged) >= 5
    assert {f"T-{number}" for number in acknowledged} <= kept
    store.close()


def test_a_locked_file_is_an_error_that_says_so(sqlite_store: Store) -> None:
    sqlite_store.add_feedback("payment", ticket_id="T-1")
    other = sqlite3.connect(str(sqlite_store.engine.url.database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        sqlite_store.add_feedback("payment", ticket_id="T-2")
    other.execute("ROLLBACK")
    assert sqlite_store.add_feedback("payment", ticket_id="T-2").status == "created"
    other.close()


FILL = """
import resource, signal, sys
from service.feedback.store import Store
from service.feedback.decision_log import StoreUnavailable
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(sys.argv[1])
store.add_feedback("payment", ticket_id="T-0")
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
done = 0
try:
    while done < 10_000:
        done += 1
        store.add_feedback("payment", ticket_id=f"T-{done}")
except StoreUnavailable as error:
    print("refused:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(store.add_feedback("payment", ticket_id=f"T-{done}").status, done)
"""


def test_a_full_disk_is_an_error_and_passes(tmp_path: Path) -> None:
    """The file may not grow past a limit, as on a full disk; when there is room again, it goes on."""
    address = f"sqlite:///{tmp_path / 'feedback.db'}"
    done = subprocess.run([sys.executable, "-c", FILL, address], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    refused, after = done.stdout.splitlines()
    assert refused in ("refused: the disk is full", "refused: the disk cannot be written")
    status, number = after.split()
    assert status == "created"
    store = Store(address)
    assert row_counts(store)["feedback"] == int(number) + 1, "nothing acknowledged is missing"
    store.close()


@pytest.mark.parametrize("kind", ["folder", "garbage"])
def test_an_impossible_file_is_an_error_without_its_path(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "feedback.db"
    if kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"not a database, " * 500)
    with pytest.raises(StoreUnavailable) as failure:
        Store(f"sqlite:///{path}").add_feedback("payment", ticket_id="T-1")
    assert str(tmp_path) not in str(failure.value)


def test_a_database_server_that_is_away_is_an_error_without_its_password() -> None:
    pytest.importorskip("psycopg")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(StoreUnavailable, match="does not answer") as failure:
        Store(f"postgresql://larkfield:secret@127.0.0.1:{port}/none").add_feedback("payment", ticket_id="T-1")
    assert "secret" not in str(failure.value)


def test_other_databases_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="sqlite or postgresql, not 'mysql'"):
        connect("mysql://localhost/tickets")


def test_the_log_writes_behind_and_stop_writes_the_rest(store: Store) -> None:
    log = DecisionLog(lambda: store, write_every=0.02)
    log.start()
    for number in range(500):
        log.record(decided(number))
    deadline = time.monotonic() + 60
    while row_counts(store)["decisions"] < 500 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert row_counts(store)["decisions"] == 500
    log.record(decided(500))
    log.stop()
    assert row_counts(store)["decisions"] == 501


def test_the_log_is_bounded_and_goes_on_after_a_lock(sqlite_store: Store) -> None:
    sqlite_store.add_feedback("payment", ticket_id="T-0")
    dropped: list[int] = []
    failed = threading.Event()
    log = DecisionLog(
        lambda: sqlite_store,
        most_waiting=100,
        write_every=0.02,
        on_dropped=dropped.append,
        on_failure=failed.set,
    )
    other = sqlite3.connect(str(sqlite_store.engine.url.database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    log.start()
    log.record(decided(0))
    assert failed.wait(60), "the lock was never noticed"
    for number in range(1, 150):
        log.record(decided(number))
    assert sum(dropped) == 50, "of 150, 100 wait and the others are counted"
    other.execute("ROLLBACK")
    other.close()
    deadline = time.monotonic() + 60
    while row_counts(sqlite_store)["decisions"] < 100 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert row_counts(sqlite_store)["decisions"] == 100
    log.stop()


def test_what_is_acknowledged_is_in_the_file_that_a_restart_opens(tmp_path: Path) -> None:
    path = tmp_path / "feedback.db"
    store = Store(f"sqlite:///{path}")
    store.add_feedback("payment", ticket_id="T-1")
    for name in ("feedback.db", "feedback.db-wal", "feedback.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    store.add_feedback("payment", ticket_id="T-2")
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):  # noqa: PT012
        with store.transaction() as connection:
            connection.execute(sa.update(feedback).values(actual="returns"))
            path.unlink()
    store.add_feedback("payment", ticket_id="T-3")
    again = Store(f"sqlite:///{path}")
    assert row_counts(again)["feedback"] == 1
    store.close()
    again.close()


def test_a_file_that_becomes_writable_is_written(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_store.add_feedback("payment", ticket_id="T-1")
    with sqlite_store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only=ON")  # as a connection that was opened on such a file
    with pytest.raises(StoreUnavailable, match="may not be written"):
        sqlite_store.add_feedback("payment", ticket_id="T-2")
    assert sqlite_store.add_feedback("payment", ticket_id="T-2").status == "created"


def test_a_clock_far_ahead_deletes_nothing_at_the_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_decisions([decided(1, age=2 * 86400)])
    store.add_feedback("payment", ticket_id="T-1")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 400 * 86400)
    assert set(store.prune(keep_days=365, text_days=30, most_decisions=10**6).values()) == {0}
    store._opened -= 2 * 86400  # after two days with that clock it is believed
    assert store.prune(keep_days=365, text_days=30, most_decisions=10**6)["feedback"] == 1


def test_a_database_without_an_encoding_keeps_accents(postgres_url: str) -> None:
    engine = connect(postgres_url).execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(
            "CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    engine.dispose()
    store = Store(postgres_url.replace("/postgres", "/plain"))
    store.add_feedback("réclamation", ticket_id="T-é")
    (row,) = store.feedback_with_text()
    assert (row.actual, row.ticket_id) == ("réclamation", "T-é")
    store.close()


def test_a_database_that_hangs_gets_503_in_time(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(endpoint, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(Store, "add_feedback", lambda *_, **__: released.wait(60))
    settings = Settings(
        bundle=bundle, feedback_url=f"sqlite:///{tmp_path / 'feedback.db'}", drift_seconds=3600
    )
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        until(lambda: client.get("/readyz").status_code == 200, "the bundle is loaded")
        ticket = {"ticket_id": "T-1", "team": "payment"}
        reply = client.post("/feedback", json=ticket)
        assert reply.status_code == 503
        assert "does not answer" in reply.json()["detail"]
        assert client.post("/feedback", json=ticket).status_code == 503, "the next fails at once"
    released.set()


def test_decisions_that_an_error_loses_are_counted(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a defect")

    dropped: list[int] = []
    monkeypatch.setattr(Store, "add_decisions", broken)
    log = DecisionLog(lambda: sqlite_store, on_dropped=dropped.append)
    for number in range(3):
        log.record(decided(number))
    with pytest.raises(ValueError, match="a defect"):
        log.flush()
    assert dropped == [3]
