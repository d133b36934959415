"""A real django-helpdesk, from the package index, in a virtual environment and with a database of its own."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from service.tools.processes import Process
from tests.service.connect.helpdesk import QUEUES, Helpdesk, NotInstalled

PINNED = Path(__file__).with_name("django-helpdesk.txt")
PASSWORD = "only-for-tests"
INSTALL_SECONDS = 400.0
QUEUE_IDS = {name: number for number, name in enumerate(["General", *QUEUES.values()], 1)}

# The webhooks go to the same address twice: each event is delivered twice.
_SETTINGS = """
SECRET_KEY = "only-for-tests"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "urls"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # each call of the API checks one
USE_TZ = True
SITE_ID = 1
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
HELPDESK_TEAMS_MODE_ENABLED = False
HELPDESK_PRIVATE_FOLLOWUP_MEANS_NO_EMAILS = True
HELPDESK_GET_NEW_TICKET_WEBHOOK_URLS = HELPDESK_GET_FOLLOWUP_WEBHOOK_URLS = lambda: [{webhook!r}] * 2
DATABASES = {{"default": {{
    "ENGINE": "django.db.backends.sqlite3", "NAME": "helpdesk.db",
    "OPTIONS": {{
        "timeout": 60, "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }},
}}}}
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "django.contrib.messages", "django.contrib.sites", "django.contrib.humanize",
    "rest_framework", "django_cleanup.apps.CleanupConfig", "helpdesk",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "urls.remember",
]
REST_FRAMEWORK = {{"DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.BasicAuthentication"]}}
TEMPLATES = [{{
    "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
    "OPTIONS": {{"context_processors": [
        "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]}},
}}]
"""
# The desk keeps no history of moves by its API: the requests that succeeded are written down instead.
_URLS = """
import base64
from django.contrib import admin
from django.http import HttpResponse
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("helpdesk/", include("helpdesk.urls")),
    path("ready/", lambda request: HttpResponse("ready")),
]

def remember(get_response):
    def answer(request):
        response = get_response(request)
        if request.method == "PATCH" and response.status_code == 200:
            user = base64.b64decode(request.headers["Authorization"].split()[1]).decode().split(":")[0]
            with open("moves", "a") as moves:
                moves.write(f"{user} {request.path}\\n")
        return response
    return answer
"""
_SETUP = """
import django
django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command
call_command("migrate", verbosity=0)
from helpdesk.models import Queue
for number, name in enumerate({queues!r}, 1):
    Queue.objects.create(id=number, title=name, slug=name.lower())
Queue.objects.filter(id=1).update(
    allow_email_submission=True, email_box_type="local", email_box_local_dir="mail", email_box_interval=0
)
for name in ("larkfield", "agent"):
    User.objects.create_user(name, password={password!r}, is_staff=True)
"""


class DjangoHelpdesk(Helpdesk):
    """django-helpdesk, and what a customer and an agent do in it, by its API and by mail."""

    kind = "django-helpdesk"
    entry = "General"
    timeout_seconds = 60.0

    def __init__(self, folder: Path, webhook: str, secret: str) -> None:
        (folder / "mail").mkdir(parents=True)
        self.folder, self.python = folder, folder / "environment" / "bin" / "python"
        self._install()
        files = {
            "settings.py": _SETTINGS.format(webhook=f"{webhook}/{secret}"),
            "urls.py": _URLS,
            "setup.py": _SETUP.format(queues=list(QUEUE_IDS), password=PASSWORD),
        }
        for name, text in files.items():
            (folder / name).write_text(text)
        environment = {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(folder)}
        self.server = Process(
            "django-helpdesk",
            [str(self.python), "-m", "django", "runserver", "--noreload", "127.0.0.1:{port}"],
            environment,
            folder=folder,
            ready_path="/ready/",
        )
        self._manage(str(folder / "setup.py"))

    def _install(self) -> None:
        for command in (
            [sys.executable, "-m", "venv", str(self.folder / "environment")],
            [str(self.python), "-m", "pip", "install", "--quiet", "--requirement", str(PINNED)],
        ):
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_SECONDS)
            except (OSError, subprocess.SubprocessError) as error:
                output = getattr(error, "stderr", None) or b""
                why = output.decode(errors="replace").strip().rpartition("\n")[2] or str(error)
                raise NotInstalled(f"django-helpdesk cannot be installed: {why}") from None

    def _manage(self, *arguments: str) -> None:
        subprocess.run(
            [str(self.python), *arguments],
            env=os.environ | self.server.environment,
            cwd=self.folder,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=self.timeout_seconds,
        )

    def configuration(self) -> str:
        numbers = ", ".join(f'"{name}" = {number}' for name, number in QUEUE_IDS.items())
        return (
            f'kind = "django-helpdesk"\nurl = "{self.server.url}/helpdesk"\nuser = "larkfield"\n'
            f"queue_ids = {{{numbers}}}\n"
        )

    @property
    def token(self) -> str:
        return PASSWORD

    def create(self, subject: str, text: str, *, html: bool = False) -> str:
        """HTML comes as a mail into the desk's mailbox; everything else through the API."""
        if html:
            mail = EmailMessage()
            mail["From"], mail["To"], mail["Subject"] = "customer@example.org", "desk@example.org", subject
            mail.set_content(text, subtype="html")
            (self.folder / "mail" / "1").write_bytes(bytes(mail))
            self._manage("-m", "django", "get_email", "--quiet")
            return self._newest(subject)
        body = {
            "queue": QUEUE_IDS[self.entry],
            "title": subject,
            "description": text,
            "submitter_email": "customer@example.org",
            "priority": 3,
        }
        try:
            return str(self._call("POST", "/tickets/", body)["id"])
        except urllib.error.HTTPError as error:
            # While nobody takes its webhooks, 2.6.1 answers 500, although the ticket is there.
            if error.code != 500:
                raise
            return self._newest(subject)

    def _newest(self, subject: str) -> str:
        record = self._call("GET", "/tickets/?page=last&page_size=1")["results"][0]
        assert record["title"] == subject
        return str(record["id"])

    def queue_of(self, ticket: str) -> str:
        number = self._call("GET", f"/tickets/{ticket}/")["queue"]
        return next(name for name, each in QUEUE_IDS.items() if each == number)

    def move(self, ticket: str, queue: str) -> None:
        self._call("PATCH", f"/tickets/{ticket}/", {"queue": QUEUE_IDS[queue]})

    def solve(self, ticket: str) -> None:
        body = {"ticket": int(ticket), "comment": "Done.", "public": True, "new_status": 3}
        self._call("POST", "/followups/", body)

    def notes(self, ticket: str) -> list[str]:
        followups = self._call("GET", f"/tickets/{ticket}/")["followup_set"]
        return [each["comment"] for each in followups if not each["public"]]

    def moves_by_router(self, ticket: str) -> int:
        moves = (self.folder / "moves").read_text()
        return len(re.findall(rf"^larkfield /helpdesk/api/tickets/{ticket}/$", moves, re.MULTILINE))

    def tickets(self) -> list[str]:
        return [str(each["id"]) for each in self._call("GET", "/tickets/?page_size=1000")["results"]]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        """As the user `agent`."""
        request = urllib.request.Request(
            f"{self.server.url}/helpdesk/api{path}",
            None if body is None else json.dumps(body).encode(),
            {
                "Content-Type": "application/json",
                "Accept": "application/json",
                "Authorization": "Basic " + base64.b64encode(f"agent:{PASSWORD}".encode()).decode(),
            },
            method=method,
        )
        with urllib.request.urlopen(request, timeout=self.timeout_seconds) as answer:
            return json.load(answer)
