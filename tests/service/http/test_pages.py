"""The page's files and the endpoints behind /learn, without a browser."""

import gzip
import re

import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.explain import attention_lesson as lesson
from service.http import pages
from service.settings import Settings


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    settings = Settings(
        provider="cpu",
        api_keys="secret",  # the page needs none
        feedback_url=f"sqlite:///{folder}/feedback.db",
    )
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/review", "/today", "/upload", "/learn"])
def test_the_pages_are_html_that_nothing_can_be_smuggled_into(client, path):
    response = client.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    text = response.text
    assert not re.search(r"<script(?![^>]*\bsrc=)", text), "no inline scripts"
    assert not re.search(r"\son\w+=|style=|javascript:", text), "no inline handlers or styles"
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text), "nothing from elsewhere"
    for name in re.findall(r'"/web/([^"]+)"', text):
        assert client.get(f"/web/{name}").status_code == 200


@pytest.mark.parametrize("name", [name for name in pages.FILES if name.endswith(".js")])
def test_scripts_never_parse_text_as_markup(name):
    source = (pages.WEB / name).read_text(encoding="utf-8")
    found = re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser"
        r"|createContextualFragment|setHTML",
        source,
    )
    assert found == []
    for imported in re.findall(r'from "([^"]+)"', source):
        assert imported.startswith("./")
        assert imported[2:] in pages.FILES


def test_files_are_asked_for_again_only_when_they_changed(client):
    first = client.get("/web/app.js", headers={"accept-encoding": "identity"})
    again = client.get("/web/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    assert first.content == (pages.WEB / "app.js").read_bytes()
    assert gzip.decompress(pages.FILES["app.js"].gzipped) == first.content
    assert client.get("/web/app.js").headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    "name", ["../learn.py", "%2e%2e/learn.py", "..%2flearn.py", "secret.txt", "", "app.js/x"]
)
def test_no_other_file_can_be_asked_for(client, name):
    response = client.get(f"/web/{name}")
    assert response.status_code in (401, 404)
    assert "def " not in response.text


def test_the_walk_comes_from_the_code(client):
    document = client.get("/learn/numbers").json()
    assert document["walk"]["causal"] == lesson.steps("causal")
    assert document["walk"]["none"] == lesson.steps("none")
    assert [row["d_k"] for row in document["key_sizes"]] == [4, 16, 64, 256, 1024]


def test_a_draw_comes_from_the_code(client):
    assert client.get("/learn/draw", params={"d_k": 64, "seed": 5}).json() == lesson.draw(64, 5)


@pytest.mark.parametrize(
    "query", ["", "d_k=0", "d_k=1025", "d_k=x", "d_k=4&seed=-1", "d_k=4&seed=4294967296"]
)
def test_a_draw_within_bounds_only(client, query):
    response = client.get(f"/learn/draw?{query}")
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"


def test_the_page_needs_no_key_but_routing_does(client):
    assert client.get("/").status_code == 200
    assert client.post("/route", json={"text": "x"}).status_code == 401
