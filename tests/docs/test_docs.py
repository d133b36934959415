"""The documentation: links lead to files that exist, and lines are short enough to read in an editor."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_LINE = 119
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """The Markdown files of the repository; bundles carry cards of their own."""
    listed = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    return [*listed, *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_lead_to_what_exists(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, which does not exist"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}: no such heading"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_lines_are_short(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    long = [number for number, line in enumerate(lines, start=1) if len(line) > LONGEST_LINE]
    assert not long, f"{page.name}: lines {long} have more than {LONGEST_LINE} characters"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_named_modules_and_files_exist(page: Path) -> None:
    """Paths in backticks that begin with a room, such as `models/scope.py` or `training.fit.loop`."""
    text = page.read_text(encoding="utf-8")
    if page.name in ("CHANGELOG.md", "decisions.md"):  # they name what no longer exists
        return
    for name in re.findall(r"`((?:models|training|service|kernels|deploy|tests)/[\w./-]+)`", text):
        assert (ROOT / name).exists() or "NAME" in name, f"{page.name} names {name}"
    for name in re.findall(r"`((?:models|training|service|kernels)(?:\.[a-z_]+)+)`", text):
        path = ROOT / name.replace(".", "/")
        parent = path.parent
        assert (
            path.with_suffix(".py").exists()
            or path.is_dir()
            or (parent.with_suffix(".py").exists() and path.name in parent.with_suffix(".py").read_text())
            or (parent.is_dir() and path.name in (parent / "__init__.py").read_text())
        ), f"{page.name} names {name}"
