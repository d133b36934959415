"""Bodies that are too large, clients that are slow or stop, too many connections."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable

import pytest

from tests.service.conftest import Running, until

HEAD = b"POST /route HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: 30\r\n\r\n"


def everything(connection: socket.socket) -> bytes:
    """All bytes until the server closes; fails when it never does."""
    data = b""
    while more := connection.recv(65_536):
        data += more
    return data


def status(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


@pytest.mark.parametrize("path", ["/route", "/feedback", "/route/batch", "/admin/reload"])
def test_a_body_over_the_limit_is_refused_before_it_is_sent(server: Running, path: str) -> None:
    with server.connect() as connection:
        head = HEAD.replace(b"/route", path.encode()) + b"Content-Length: 5000000000\r\n\r\n"
        connection.sendall(head)
        response = everything(connection)
    expected = {"/admin/reload": 403}.get(path, 413)
    assert status(response) == expected or (path == "/feedback" and status(response) in (404, 413))


def test_a_chunked_body_is_cut_at_the_limit(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        connection.sendall(5 * (b"10000\r\n" + b"x" * 0x10000 + b"\r\n"))
        assert status(everything(connection)) == 413


def test_an_endless_body_is_discarded_up_to_a_bound(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk, sent = b"100000\r\n" + b"x" * 0x100000 + b"\r\n", 0
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(500):
                connection.sendall(chunk)
                sent += len(chunk)
    assert sent < 64 * 2**20
    assert server.route("parcel").status == 200


def with_picture(size: int, text: str = "my card was charged two times") -> dict[str, str]:
    """A ticket with a screenshot of `size` characters pasted into its HTML."""
    return {"text": f'<p>{text}</p><img src="data:image/png;base64,{"iVBORw0KGgo+" * (size // 12)}">'}


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
def test_a_pasted_screenshot_is_not_counted(server: Running, chunked: bool) -> None:
    body = json.dumps(with_picture(3_900_000)).encode()
    parts = (body[at : at + 100_000] for at in range(0, len(body), 100_000))
    client = http.client.HTTPConnection("localhost", server.port, timeout=30)
    headers = {"Content-Type": "application/json"}
    client.request("POST", "/route", parts if chunked else body, headers, encode_chunked=chunked)
    response = client.getresponse()
    assert response.status == 200
    answer, without = json.loads(response.read()), server.route("my card was charged two times").json()
    client.close()
    assert (answer["team"], answer["tokens"]) == (without["team"], without["tokens"])


@pytest.mark.parametrize(
    ("ticket", "detail"),
    [
        (with_picture(300_000, "parcel " * 40_000), "larger than 262144 bytes, inline images not counted"),
        (with_picture(4_200_000), "larger than 4194304 bytes"),
        (
            {"text": "data:image/png;base64,A " * 100_000},
            "larger than 262144 bytes, inline images not counted",
        ),
    ],
    ids=["too much text beside a picture", "a picture beyond the hard limit", "headers of pictures"],
)
def test_a_screenshot_has_a_hard_limit(server: Running, ticket: dict[str, str], detail: str) -> None:
    refused = server.call("POST", "/route", ticket)
    assert refused.status == 413
    assert detail in refused.json()["detail"]


def test_a_screenshot_in_a_batch_and_a_stream(server: Running) -> None:
    tickets = [with_picture(1_000_000), {"text": "parcel " * 50_000}, with_picture(600, "where is my parcel")]
    results = server.call("POST", "/route/batch", {"tickets": tickets}).json()["results"]
    assert [result.get("status", 200) for result in results] == [200, 413, 200]
    tickets.insert(1, with_picture(4_500_000))
    lines = "\n".join(map(json.dumps, tickets)).encode()
    reply = server.call("POST", "/route/stream", lines, content_type="application/x-ndjson")
    results = [json.loads(line) for line in reply.body.splitlines()]
    assert [result.get("status", 200) for result in results] == [200, 413, 413, 200]


def test_screenshots_in_a_stream_count_as_bytes_in_flight(start: Callable[..., Running]) -> None:
    running = start(max_bytes_in_flight=3_000_000, deadline_seconds=1)
    tickets = [with_picture(2_000_000), with_picture(3_500_000), with_picture(2_000_000), {"text": "parcel"}]
    lines = "\n".join(map(json.dumps, tickets)).encode()
    for _ in range(2):  # all bytes were released
        reply = running.call("POST", "/route/stream", lines, content_type="application/x-ndjson")
        results = [json.loads(line) for line in reply.body.splitlines()]
        assert [result.get("status", 200) for result in results] == [200, 503, 200, 200]


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}], ids=["kept alive", "to be closed"])
@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
def test_a_client_that_writes_its_whole_body_first_gets_the_413(
    server: Running, headers: dict[str, str], chunked: bool
) -> None:
    parts = [b"x" * 100_000] * 50
    for _ in range(3):  # a reset is a matter of chance
        client = http.client.HTTPConnection("localhost", server.port, timeout=30)
        body = iter(parts) if chunked else b"".join(parts)
        client.request(
            "POST", "/route", body, {"Content-Type": "application/json", **headers}, encode_chunked=chunked
        )
        response = client.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["status"] == 413
        client.close()


def test_a_client_that_writes_on_slowly_after_its_answer_is_cut_off(server: Running) -> None:
    with server.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 5000000\r\n\r\n")
        assert status(everything(connection)) == 413
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(1200):
                connection.sendall(b"x")
                time.sleep(0.05)
    assert server.route("parcel").status == 200


def test_a_chunked_body_is_cut_where_the_framework_reads_it(start: Callable[..., Running]) -> None:
    running = start(admin_key="chief", max_body_bytes=1024)
    with running.connect() as connection:
        connection.sendall(
            HEAD.replace(b"/route", b"/admin/reload")
            + b"X-API-Key: chief\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"800\r\n"
            + b" " * 0x800
            + b"\r\n"
        )
        response = b""
        while b"}" not in response:
            response += connection.recv(65_536)
    assert status(response) == 413


def test_five_megabytes_are_refused_with_a_problem(server: Running) -> None:
    with server.connect() as connection:
        body = json.dumps({"text": "x" * 5_000_000}).encode()
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:1000])
        response = everything(connection)
    assert status(response) == 413
    assert b"application/problem+json" in response


def test_a_text_at_the_limit_is_routed(start: Callable[..., Running]) -> None:
    running = start(max_body_bytes=100_000)
    body = b'{"text": "' + b"x" * (100_000 - 12) + b'"}'
    assert len(body) == 100_000
    assert running.call("POST", "/route", body).status == 200
    assert running.call("POST", "/route", body + b" ").status == 413


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /route HT",
        HEAD,
        HEAD + b"Content-Length: 30\r\n\r\n",
        HEAD + b"Content-Length: 30\r\n\r\n{",
    ],
    ids=["nothing", "half a line", "half the headers", "no body", "half a body"],
)
def test_a_client_that_stops_is_cut_off(start: Callable[..., Running], sent: bytes) -> None:
    running = start(header_timeout_seconds=0.3, body_timeout_seconds=0.3)
    with running.connect() as connection:
        connection.sendall(sent)
        response = everything(connection)
    assert response == b"" or status(response) == 408
    assert running.route("parcel").status == 200


def test_empty_lines_do_not_keep_a_connection_open(start: Callable[..., Running]) -> None:
    running = start(header_timeout_seconds=0.5)
    fresh, used = running.connect(), running.connect()
    with fresh, used:
        used.sendall(request_of(0))
        while b'"ticket_id":"0"' not in used.recv(65_536):
            pass
        for connection in (fresh, used):
            connection.settimeout(60)
            with pytest.raises(OSError):  # noqa: PT012
                for _ in range(3000):
                    connection.sendall(b"\r\n")
                    time.sleep(0.02)
                raise AssertionError("it was allowed to stay")


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "endless", [b"X-T: " + b"a" * 8000 + b"\r\n", b"a" * 8000], ids=["many trailers", "one long trailer"]
)
def test_endless_trailers_are_refused(server: Running, endless: bytes) -> None:
    with server.connect() as connection:
        sent = 0
        try:
            connection.sendall(CHUNKED + b'11\r\n{"text":"parcel"}\r\n0\r\nX-F: ')
            for _ in range(2000):
                connection.sendall(endless)
                sent += len(endless)
        except OSError:
            pass
    assert sent < 6_000_000, "the server read on and on"
    assert server.route("parcel").status == 200


def test_a_long_chunk_extension_is_refused(server: Running) -> None:
    with server.connect() as connection:
        response = b""
        try:
            connection.sendall(CHUNKED + b"1;")
            for _ in range(1000):
                connection.sendall(b"a" * 8000)
            response = everything(connection)
        except OSError:
            pass  # the kernel may drop the answer with what it could not deliver
    assert response == b"" or status(response) == 431


def test_a_key_in_a_trailer_is_no_key(start: Callable[..., Running]) -> None:
    running = start(api_keys="right")
    body = b'14\r\n{"text":"parcel la"}\r\n0\r\nX-API-Key: right\r\n\r\n'
    with running.connect() as connection:
        # The body comes in the same packet, so that its trailers are there before the key is looked at.
        connection.sendall(CHUNKED + body)
        assert status(connection.recv(65_536)) == 401


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["no Host", "two Hosts", "chunks in HTTP/1.0", "CONNECT"],
)
def test_what_servers_may_read_in_two_ways_is_refused(server: Running, head: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(head + request_of(7))
        response = everything(connection)
    assert status(response) == 400
    assert b'"ticket_id"' not in response, "what came behind it was answered"


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", 200), ("127.0.0.1:8000", 200), ("[::1]:80", 200), ("evil.example", 421), ("", 421)],
)
def test_without_keys_only_the_names_of_this_machine_lead_here(
    server: Running, host: str, expected: int
) -> None:
    assert server.call("POST", "/route", {"text": "parcel"}, host=host).status == expected


def test_with_a_key_any_name_leads_here(start: Callable[..., Running]) -> None:
    running = start(api_keys="right")
    ticket = {"text": "parcel"}
    assert running.call("POST", "/route", ticket, host="desk.example", x_api_key="right").status == 200


def test_dripping_bytes_does_not_extend_the_time(start: Callable[..., Running]) -> None:
    running = start(header_timeout_seconds=0.5)
    with running.connect() as connection, pytest.raises(OSError):  # noqa: PT012
        connection.settimeout(60)
        for byte in HEAD * 100:
            connection.sendall(bytes([byte]))
            time.sleep(0.02)
        raise AssertionError("it was allowed to drip for ever")


def test_many_idle_connections_leave_the_service_free(start: Callable[..., Running]) -> None:
    running = start(max_connections=50)
    idle = [running.connect() for _ in range(49)]
    for connection in idle:
        connection.sendall(HEAD)
    assert running.route("parcel").status == 200
    extra = [running.connect() for _ in range(5)]
    refused = [everything(connection) for connection in extra[1:]]
    assert all(status(response) == 503 and b"retry-after" in response for response in refused)
    for connection in idle + extra:
        connection.close()
    until(lambda: running.route("parcel").status == 200, "there is room again")
    assert running.metrics()['larkfield_refused_total{reason="connections"}'] >= 4
    assert running.metrics()["larkfield_open_connections"] >= 1


def test_a_half_closed_client_gets_its_answer_and_is_closed(server: Running) -> None:
    with server.connect() as connection:
        body = b'{"text": "parcel late"}'
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        connection.shutdown(socket.SHUT_WR)
        response = everything(connection)
    assert status(response) == 200
    assert b"delivery" in response


def test_a_client_that_never_reads_is_cut_off(start: Callable[..., Running]) -> None:
    running = start(write_timeout_seconds=0.5)
    with running.connect() as connection:
        connection.settimeout(0.2)
        connection.sendall(
            b"POST /route/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        line = b'{"text": "parcel late"}\n' * 200
        end = time.monotonic() + 60
        cut = False
        while not cut and time.monotonic() < end:
            try:
                connection.sendall(b"%x\r\n%s\r\n" % (len(line), line))
            except TimeoutError:
                continue
            except OSError:
                cut = True
        assert cut
    assert running.route("parcel").status == 200


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 100],
)
def test_what_is_not_http_gets_400(server: Running, garbage: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(garbage)
        response = everything(connection)
    assert status(response) == 400
    assert b"application/problem+json" in response
    assert b"x-request-id" in response


def test_endless_headers_are_refused(server: Running) -> None:
    with server.connect() as connection:
        response = b""
        try:
            connection.sendall(HEAD)
            for number in range(10_000):
                connection.sendall(b"X-H%d: %s\r\n" % (number, b"a" * 100))
            response = everything(connection)
        except OSError:
            pass
    assert response == b"" or status(response) in (400, 431)
    assert server.route("parcel").status == 200


def test_requests_in_one_packet_are_answered_in_order(server: Running) -> None:
    with server.connect() as connection:
        requests = b""
        for number in range(5):
            body = json.dumps({"ticket_id": str(number), "text": "parcel"}).encode()
            requests += HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        connection.sendall(
            requests + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        response = everything(connection)
    places = [response.index(b'"ticket_id":"%d"' % number) for number in range(5)]
    assert places == sorted(places)
    assert response.endswith(b'{"status":"ok"}')


def request_of(number: int, text: str = "parcel", **fields: str) -> bytes:
    body = json.dumps({"ticket_id": str(number), "text": text, **fields}).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


BROKEN = {
    "garbage": b"nonsense\r\n\r\n",
    "half a line": b"POST /rou",
    "half a body": HEAD + LENGTH + b"{",
    "a bad chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n",
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("half_closed", [False, True], ids=["open", "half closed"])
def test_what_comes_behind_them_costs_no_requests(
    start: Callable[..., Running], broken: bytes, half_closed: bool
) -> None:
    running = start(header_timeout_seconds=0.5, body_timeout_seconds=0.5)
    with running.connect() as connection:
        connection.sendall(b"".join(map(request_of, range(5))) + broken)
        if half_closed:
            connection.shutdown(socket.SHUT_WR)
        response = everything(connection)
    places = [response.index(b'"ticket_id":"%d"' % number) for number in range(5)]
    assert places == sorted(places)
    head, _, last = response[places[-1] :].partition(b"HTTP/1.1 ")
    assert b'"delivery"' in head
    assert last[:3] in (b"400", b"408")
    assert running.route("parcel").status == 200
    assert running.metrics()["larkfield_in_flight_requests"] == 0


@pytest.mark.parametrize("broken", [b"POST /rou", HEAD, HEAD + LENGTH + b"{"])
def test_half_a_request_gets_its_400_however_late_the_client_stops(server: Running, broken: bytes) -> None:
    """After the request before it was answered, when nothing else is left to be sent."""
    with server.connect() as connection:
        connection.sendall(request_of(0) + broken)
        first = b""
        while b'"ticket_id":"0"' not in first:
            first += connection.recv(65_536)
        time.sleep(0.05)
        connection.shutdown(socket.SHUT_WR)
        response = everything(connection)
    assert status(response[response.index(b"HTTP/1.1 ") :]) == 400


COMMON = {
    "date",
    "content-type",
    "content-length",
    "x-request-id",
    "x-content-type-options",
    "referrer-policy",
    "cache-control",
    "content-security-policy",
}


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}", 422),
        (HEAD.replace(b"/json", b"/xml") + b"Content-Length: 2\r\n\r\n{}", 415),
        (HEAD.replace(b"/route", b"/route/batch") + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}", 422),
        (HEAD.replace(b"/route", b"/nowhere") + b"Content-Length: 0\r\nConnection: close\r\n\r\n", 404),
        (b"DELETE /route HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_every_error_has_the_same_headers(server: Running, request_bytes: bytes, expected: int) -> None:
    with server.connect() as connection:
        connection.sendall(request_bytes)
        response = everything(connection)
    head, _, body = response.partition(b"\r\n\r\n")
    names = [line.partition(b":")[0].lower().decode() for line in head.split(b"\r\n")[1:]]
    assert status(response) == expected == json.loads(body)["status"]
    assert set(names) - {"allow"} == COMMON | {"connection"}
    assert len(set(names)) == len(names)


def test_a_request_whose_body_comes_later_is_answered_after_the_one_before(server: Running) -> None:
    later = request_of(1)
    with server.connect() as connection:
        connection.sendall(request_of(0) + later[:-10])
        first = b""
        while b'"ticket_id":"0"' not in first:
            first += connection.recv(65_536)
        connection.sendall(
            later[-10:] + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        response = first + everything(connection)
    assert b'"ticket_id":"1"' in response
    assert response.endswith(b'{"status":"ok"}')


def test_a_second_request_that_is_slow_is_told_so(start: Callable[..., Running]) -> None:
    running = start(header_timeout_seconds=0.3)
    with running.connect() as connection:
        connection.sendall(request_of(0))
        first = b""
        while b'"ticket_id":"0"' not in first:
            first += connection.recv(65_536)
        connection.sendall(HEAD)
        response = everything(connection)
    assert status(response[response.index(b"HTTP/1.1 ") :]) == 408


@pytest.mark.parametrize("name", [b"Upgrade", b"UPGRADE"])
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_a_wish_for_another_protocol_costs_no_ticket(server: Running, protocol: bytes, name: bytes) -> None:
    """Java's HTTP client asks for HTTP/2 with each request; the body is HTTP/1.1 all the same."""
    body = b'{"text": "parcel late"}'
    wish = b"Connection: Upgrade, HTTP2-Settings, close\r\n%s: %s\r\nHTTP2-Settings: AA\r\n" % (
        name,
        protocol,
    )
    request = HEAD + wish + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for at in (0, request.index(name + b":")):  # in one packet, and in two
        with server.connect() as connection:
            connection.sendall(request[:at])
            time.sleep(0.1 if at else 0)
            connection.sendall(request[at:])
            response = everything(connection)
        assert status(response) == 200
        assert b"delivery" in response


@pytest.mark.parametrize(
    ("version", "header", "closes"),
    [
        (b"1.1", b"", False),
        (b"1.1", b"Connection: close\r\n", True),
        (b"1.0", b"", True),
        (b"1.0", b"Connection: keep-alive\r\n", True),
    ],
)
def test_an_answer_has_each_header_once_and_closes_when_it_should(
    server: Running, version: bytes, header: bytes, closes: bool
) -> None:
    body = b'{"text": "my card was charged twice"}'
    request = HEAD.replace(b"1.1", version) + header + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with server.connect() as connection:
        connection.sendall(request)
        response = b""
        while b"\r\n\r\n" not in response:
            response += connection.recv(65_536)
        head, _, answer = response.partition(b"\r\n\r\n")
        names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(answer) < length:
            answer += connection.recv(65_536)
        assert json.loads(answer)["team"]
        assert len(answer) == length
        assert len(set(names)) == len(names)
        assert {b"date", b"content-type", b"x-request-id", b"x-content-type-options"} <= set(names)
        assert (b"connection: close" in head.lower()) == closes
        if closes:
            assert everything(connection) == b""
        else:
            connection.sendall(request)
            assert status(connection.recv(65_536)) == 200
