"""A real Request Tracker 5 (Debian's packages) with a private database, for tests."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from service.tools.processes import Process
from tests.service.connect.helpdesk import QUEUES, Helpdesk, NotInstalled

SERVER = Path("/usr/share/request-tracker5/libexec/rt-server")
PASSWORD = "only-for-tests"
_SITE = """
use utf8;
Set($rtname, 'test');
Set($Organization, 'test');
Set($WebDomain, '127.0.0.1');
Set($WebPort, {port});
Set($BcryptCost, 10);
Set($DatabaseType, 'SQLite');
Set($DatabaseName, '{folder}/rt.db');
Set($MasonDataDir, '{folder}/mason');
Set($MasonSessionDir, '{folder}/sessions');
Set($WebSessionClass, 'Apache::Session::File');
Set($MailCommand, 'testfile');
Set($LogToSyslog, undef);
Set($LogToSTDERR, 'warning');
Set($LarkfieldWebhook, '{webhook}');
Set($LarkfieldSecret, '{secret}');
1;
"""
# Queues, two users, and the scrip of docs/helpdesks.md, which here tells of each event twice.
_DATA = """
our @Queues = map {{ {{ Name => $_ }} }} qw({queues});
our @Users = map {{ {{ Name => $_, Password => '{password}', Privileged => 1 }} }} qw(larkfield agent);
our @ACL;
for my $user (qw(larkfield agent)) {{
    push @ACL, {{ UserId => $user, Right => $_ }} for qw(
        SeeQueue ShowTicket ShowTicketComments CommentOnTicket CreateTicket ModifyTicket OwnTicket TakeTicket
    );
}}
our @Scrips = map {{ {{
    Description => "Larkfield: $_",
    ScripCondition => $_,
    ScripAction => 'User Defined',
    Template => 'Blank',
    Stage => 'TransactionBatch',
    CustomPrepareCode => 'return 1;',
    CustomCommitCode => q{{
        use Digest::SHA; use JSON; use LWP::UserAgent;
        my $body = JSON->new->utf8->encode({{
            ticket => $self->TicketObj->id, transaction => $self->TransactionObj->id,
        }});
        my $signature = Digest::SHA::hmac_sha256_hex($body, RT->Config->Get('LarkfieldSecret'));
        for my $again (1, 2) {{
            my $answer = LWP::UserAgent->new(timeout => 3)->post(
                RT->Config->Get('LarkfieldWebhook'),
                'Content-Type' => 'application/json',
                'X-Hub-Signature' => "sha256=$signature",
                Content => $body,
            );
            RT->Logger->warning('Larkfield: ' . $answer->status_line) unless $answer->is_success;
        }}
        return 1;
    }},
}} }} ('On Create', 'On Status Change', 'On Queue Change');
1;
"""


class RequestTracker(Helpdesk):
    """RT, and what a customer and an agent do in it, by REST2."""

    kind = "rt"
    entry = "General"
    timeout_seconds = 60.0

    def __init__(self, folder: Path, webhook: str, secret: str) -> None:
        if not SERVER.exists() or shutil.which("rt-setup-database-5") is None:
            raise NotInstalled("Request Tracker 5 is not installed")
        for name in ("mason", "sessions", "no-more-settings"):
            (folder / name).mkdir(parents=True)
        self.server = Process(
            "Request Tracker",
            [str(SERVER), "--port", "{port}", "--max-workers", "3", "--max-reqs-per-child", "100000"],
            {
                "RT_SITE_CONFIG": str(folder / "RT_SiteConfig.pm"),
                "RT_SITE_CONFIG_DIR": str(folder / "no-more-settings"),
            },
            folder=folder,
            ready_path="/",
        )
        site = _SITE.format(port=self.server.port, folder=folder, webhook=webhook, secret=secret)
        (folder / "RT_SiteConfig.pm").write_text(site)
        (folder / "data").write_text(_DATA.format(queues=" ".join(QUEUES.values()), password=PASSWORD))
        for arguments in (["--action", "init"], ["--action", "insert", "--datafile", str(folder / "data")]):
            subprocess.run(
                ["rt-setup-database-5", *arguments],
                env=os.environ | self.server.environment,
                cwd=folder,
                check=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
            )

    def configuration(self) -> str:
        return f'kind = "rt"\nurl = "{self.server.url}"\nuser = "larkfield"\n'

    @property
    def token(self) -> str:
        return PASSWORD

    def create(self, subject: str, text: str, *, html: bool = False) -> str:
        kind = "text/html" if html else "text/plain"
        body = {"Queue": self.entry, "Subject": subject, "Content": text, "ContentType": kind}
        return str(self._call("POST", "/ticket", body | {"Requestor": "customer@example.org"})["id"])

    def queue_of(self, ticket: str) -> str:
        record = self._call("GET", f"/ticket/{ticket}")
        return str(self._call("GET", f"/queue/{record['Queue']['id']}")["Name"])

    def move(self, ticket: str, queue: str) -> None:
        self._call("PUT", f"/ticket/{ticket}", {"Queue": queue})

    def solve(self, ticket: str) -> None:
        self._call("PUT", f"/ticket/{ticket}", {"Status": "resolved"})

    def notes(self, ticket: str) -> list[str]:
        found = self._call("GET", f"/ticket/{ticket}/attachments?fields=Subject&per_page=100")["items"]
        mine = [item["id"] for item in found if item["Subject"] == "Larkfield router"]
        contents = [self._call("GET", f"/attachment/{number}")["Content"] for number in mine]
        return [base64.b64decode(content).decode() for content in contents]

    def moves_by_router(self, ticket: str) -> int:
        found = self._call("GET", f"/ticket/{ticket}/history?fields=Type,Field,Creator&per_page=100")["items"]
        return sum(
            item["Type"] == "Set" and item["Field"] == "Queue" and item["Creator"]["id"] == "larkfield"
            for item in found
        )

    def tickets(self) -> list[str]:
        """Every ticket's number."""
        numbers, page, pages = [], 1, 1
        while page <= pages:
            found = self._call("GET", f"/tickets?query=id%3E0&orderby=id&per_page=100&page={page}")
            numbers += [str(item["id"]) for item in found["items"]]
            page, pages = page + 1, found["pages"]
        return numbers

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        """As the user `agent`."""
        request = urllib.request.Request(
            f"{self.server.url}/REST/2.0{path}",
            None if body is None else json.dumps(body).encode(),
            {
                "Content-Type": "application/json",
                "Authorization": "Basic " + base64.b64encode(f"agent:{PASSWORD}".encode()).decode(),
            },
            method=method,
        )
        with urllib.request.urlopen(request, timeout=self.timeout_seconds) as answer:
            return json.load(answer)
