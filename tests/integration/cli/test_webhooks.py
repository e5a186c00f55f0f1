"""`diffuserve webhooks` against a real server and a real receiver."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from diffuserve.settings import Settings
from support.command import Invoke
from support.server_thread import ServerThread


@dataclass
class Receiver:
    """Responds with `status`, and keeps the messages."""

    url: str = ""
    status: int = 204
    messages: list[dict[str, object]] = field(default_factory=list)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.messages.append(json.loads(body))
            self.send_response(receiver.status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        receiver.url = f"http://127.0.0.1:{listener.server_port}/hook"
        Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
        yield receiver
        listener.shutdown()


@pytest.fixture(scope="module")
def sender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server that may reach receivers on this machine."""
    settings = Settings.with_options(
        data_dir=tmp_path_factory.mktemp("sender"),
        port=0,
        prompt_filter="none",
        webhook_allowed_networks=("127.0.0.0/8",),
        webhook_allowed_ports=("1-65535",),
    )
    with ServerThread(settings) as server:
        yield server


def test_a_trial_delivers_a_signed_message_and_lists_it(
    invoke: Invoke, sender: ServerThread, receiver: Receiver
) -> None:
    server = ("--server", sender.address)
    tried = invoke("webhooks", "test", receiver.url, *server)
    assert (tried.code, tried.err) == (0, "")
    delivery_id, _, outcome = tried.out.partition(" ")
    assert outcome == "delivered: responded with 204"
    assert len(receiver.messages) == 1
    assert json.loads(invoke("jobs", "list", "--json", *server).out)["data"] == [], "no card in the gallery"
    rows = [line.split() for line in invoke("webhooks", "list", *server).out.splitlines()]
    endpoint_id = next(row[0] for row in rows if row[-1] == receiver.url)
    listed = invoke("webhooks", "deliveries", endpoint_id, *server).out.splitlines()
    assert listed[1].split()[:2] == [delivery_id, "delivered"]
    again = invoke("webhooks", "redeliver", endpoint_id, delivery_id, *server)
    assert (again.code, again.out) == (0, f"{delivery_id} pending")
    assert invoke("webhooks", "secret", *server).out.startswith("whsec_")


def test_a_trial_that_fails_says_why_and_a_disabled_receiver_is_enabled(
    invoke: Invoke, sender: ServerThread, receiver: Receiver
) -> None:
    server = ("--server", sender.address)
    receiver.status = 410
    tried = invoke("webhooks", "test", receiver.url, *server)
    assert (tried.code, tried.out.split()[-1]) == (1, "410")
    page = json.loads(invoke("webhooks", "list", "--json", *server).out)
    endpoint = next(endpoint for endpoint in page["data"] if endpoint["url"] == receiver.url)
    assert endpoint["is_disabled"]
    assert invoke("webhooks", "enable", endpoint["id"], *server).out == f"{endpoint['id']} enabled"


def test_a_url_in_a_private_network_is_refused(invoke: Invoke) -> None:
    refused = invoke("webhooks", "test", "http://127.0.0.1/hook")
    assert (refused.code, "webhook.url" in refused.err) == (2, True)
