"""Prompts are cleaned, moderated and expanded before anything is stored."""

import hashlib
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.api.submit.prompt_processor import NOT_OFFERED, PromptProcessor
from diffuserve.client.codec import decode
from diffuserve.domain.resources.job import JobResource
from diffuserve.domain.resources.model import ModelList
from diffuserve.domain.safety import Action, SafetyStage
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.jobs.tasks.reaper import Reaper
from diffuserve.prompts.base import PromptExpander
from diffuserve.prompts.cache import CachedExpander
from diffuserve.prompts.chat import ChatConfig, ChatExpander
from diffuserve.safety.base import TextClassifier
from diffuserve.safety.moderation_api.client import ModerationClassifier
from diffuserve.safety.policies.policy_file import parse_policy
from diffuserve.safety.policies.rules import Rules
from diffuserve.safety.prompt import PolicyFilter
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import HandWorker
from support.scripted_server import ScriptedServer, chat_reply, moderation_reply
from support.waiting import HANG_SECONDS

POLICY = parse_policy(
    """
    version: 1
    extends: default
    name: house
    revision: "7"
    categories:
      brands: {action: block, terms: [acmecola]}
      spoilers: {action: flag, terms: [finale]}
      gambling: {action: block, threshold: 0.5}
    tenants:
      default: {}
      newsroom:
        brands: {action: allow}
    """
)
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def classifier() -> TextClassifier | None:
    return None


@pytest.fixture
def is_open_when_down() -> bool:
    return False


@pytest.fixture
def expander() -> PromptExpander | None:
    return None


@pytest.fixture(scope="module")
def rules() -> Rules:
    return Rules(POLICY)


@pytest.fixture
async def app(
    rules: Rules,
    monkeypatch: pytest.MonkeyPatch,
    store: JobStore,
    artifacts: LocalArtifactStore,
    bus: MemoryEventBus,
    classifier: TextClassifier | None,
    is_open_when_down: bool,
    expander: PromptExpander | None,
) -> AsyncGenerator[FastAPI]:
    monkeypatch.setattr("diffuserve.safety.prompt.Rules", lambda _: rules)  # compiled for all tests
    judge = PolicyFilter(POLICY, classifier, is_open_when_down=is_open_when_down)
    processor = PromptProcessor(judge, expander)
    yield create_app(store, artifacts, bus, ApiConfig(poll_seconds=0.2), None, processor)
    await processor.close()


async def submit(http: httpx.AsyncClient, prompt: str, **body: Any) -> httpx.Response:
    inputs = {"prompt": prompt, **body.pop("input", {})}
    return await http.post("/v1/jobs", json={"input": inputs} | body)


async def test_a_blocked_prompt_leaves_only_an_audit_entry_without_its_text(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    response = await submit(http, "a bottle of  A\u200bcmeCola")
    problem = response.json()
    assert (response.status_code, problem["code"], problem["category"]) == (422, "prompt_blocked", "brands")
    assert problem["retryable"] is False
    assert "cola" not in response.text.lower()
    assert (await http.get("/v1/jobs")).json()["data"] == []
    assert await store.operations.lanes() == []

    [entry] = await store.audit.newest()
    assert (entry.stage, entry.category, entry.action) == (SafetyStage.PROMPT, "brands", Action.BLOCK)
    assert entry.prompt_hash == hashlib.sha256(b"a bottle of AcmeCola").hexdigest()
    assert "house 7" in entry.filter
    assert "cola" not in repr(entry).lower()
    assert await store.audit.newest(entry.tenant_id) == [entry]
    assert await store.audit.newest("another tenant") == []


async def test_a_flagged_prompt_is_accepted_and_its_record_has_the_verdict(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    response = await submit(http, "the season finale")
    job = response.json()
    decode(JobResource, response.content)
    assert job["prompt"]["verdict"] == {
        "action": "flag",
        "findings": [{"category": "spoilers", "action": "flag", "source": "term", "score": 1.0}],
    }
    assert job["prompt"]["filter"]["version"] == "house 7"
    assert (await http.get(job["urls"]["self"])).json()["prompt"] == job["prompt"]
    [entry] = await store.audit.newest()
    assert (entry.action, entry.category, entry.job_id) == (Action.FLAG, "spoilers", job["id"])


async def test_the_model_reads_the_cleaned_prompt_and_the_original_is_kept(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    original = "  a\u00a0ﬁne\u200b   cat\n"
    job = (await submit(http, original)).json()
    assert job["input"]["prompt"] == "a fine cat"
    assert job["prompt"]["original"] == original
    [lease] = await worker.claim()
    assert lease.input["prompt"] == "a fine cat"
    assert await store.audit.newest() == []


async def test_a_prompt_without_visible_characters_is_rejected(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    response = await submit(http, "\u200b \u2060")
    assert (response.status_code, response.json()["code"]) == (422, "invalid_params")
    assert response.json()["errors"][0]["field"] == "input.prompt"


async def test_openai_and_flat_routes_reject_a_blocked_prompt_in_their_own_format(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    openai = await http.post("/v1/images/generations", json={"prompt": "acmecola"})
    assert openai.status_code == 400
    assert openai.json()["error"]["code"] == "moderation_blocked"
    flat = await http.post("/generate", json={"prompt": "acmecola"})
    assert (flat.status_code, flat.json()["code"]) == (422, "prompt_blocked")


async def test_a_batch_with_a_blocked_item_is_rejected_as_a_whole(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    items = [
        {"custom_id": str(n), "input": {"prompt": prompt}}
        for n, prompt in enumerate(["a cat", "acmecola", "a dog"] * 10)
    ]
    response = await http.post("/v1/batches", json={"items": items})
    assert response.status_code == 422
    assert {error["field"] for error in response.json()["errors"]} >= {"items.1.input.prompt"}
    assert "brands" in response.json()["errors"][0]["message"]
    assert (await http.get("/v1/batches")).json()["data"] == []
    assert len(await store.audit.newest()) == 10


async def test_each_item_of_a_batch_has_its_own_verdict(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    prompts = ["a cat", "the   finale"] * 20
    items = [{"custom_id": str(n), "input": {"prompt": prompt}} for n, prompt in enumerate(prompts)]
    assert (await http.post("/v1/batches", json={"items": items})).status_code == 202
    jobs = (await http.get("/v1/jobs", params={"limit": 200})).json()["data"]
    seen = {(job["prompt"]["original"], job["prompt"]["verdict"]["action"]) for job in jobs}
    assert seen == {("a cat", "allow"), ("the   finale", "flag")}
    assert len(await store.audit.newest()) == 20


async def test_models_list_their_filters(http: httpx.AsyncClient, worker: HandWorker) -> None:
    response = await http.get("/v1/models")
    decode(ModelList, response.content)
    [model] = response.json()["data"]
    assert model["safety"]["prompt"]["name"] == "policy"
    assert model["safety"]["prompt"]["thresholds"]["gambling"] == 0.5
    assert model["safety"]["image"] == [None]


async def test_verdicts_are_counted(http: httpx.AsyncClient, worker: HandWorker) -> None:
    for prompt in ("a cat", "the finale", "acmecola"):
        await submit(http, prompt)
    lines = (await http.get("/metrics")).text.splitlines()
    counted = {line for line in lines if line.startswith("diffusion_safety_verdicts_total")}
    assert counted == {
        'diffusion_safety_verdicts_total{action="allow",category="none",stage="prompt"} 1.0',
        'diffusion_safety_verdicts_total{action="flag",category="spoilers",stage="prompt"} 1.0',
        'diffusion_safety_verdicts_total{action="block",category="brands",stage="prompt"} 1.0',
    }
    assert 'diffusion_safety_filter_seconds_count{stage="prompt"} 3.0' in lines


async def test_old_audit_entries_are_deleted(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore, artifacts: LocalArtifactStore
) -> None:
    await submit(http, "acmecola")
    await Reaper(store.housekeeping, artifacts).forget_outdated()
    assert len(await store.audit.newest()) == 1
    object.__setattr__(store.config, "audit_seconds", 0.0)
    await Reaper(store.housekeeping, artifacts).forget_outdated()
    assert await store.audit.newest() == []


class TestModerationServer:
    """Moderation with scores from another server."""

    @pytest.fixture
    def classifier(self, elsewhere: ScriptedServer) -> TextClassifier:
        return ModerationClassifier(elsewhere.url, timeout_seconds=HANG_SECONDS)

    async def test_a_score_above_the_threshold_blocks_the_prompt(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer
    ) -> None:
        elsewhere.always = moderation_reply({"gambling": 0.6})
        response = await submit(http, "a roulette wheel")
        assert (response.status_code, response.json()["category"]) == (422, "gambling")
        elsewhere.always = moderation_reply({"gambling": 0.4})
        assert (await submit(http, "a roulette wheel")).status_code == 202

    async def test_no_prompt_is_accepted_while_the_server_is_unavailable(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer, store: JobStore
    ) -> None:
        response = await submit(http, "a cat")
        problem = response.json()
        assert (response.status_code, problem["code"]) == (503, "moderation_unavailable")
        assert problem["retryable"] is True
        assert response.headers["retry-after"]
        assert (await submit(http, "acmecola")).json()["code"] == "prompt_blocked"
        assert (await http.get("/v1/jobs")).json()["data"] == []

    class TestOpenWhenDown:
        @pytest.fixture
        def is_open_when_down(self) -> bool:
            return True

        async def test_rules_alone_decide_while_the_server_is_unavailable(
            self, http: httpx.AsyncClient, worker: HandWorker
        ) -> None:
            job = (await submit(http, "a cat")).json()
            [finding] = job["prompt"]["verdict"]["findings"]
            assert (finding["category"], finding["action"]) == ("unjudged", "flag")
            assert (await submit(http, "acmecola")).status_code == 422


class TestExpansion:
    @pytest.fixture
    def expander(self, elsewhere: ScriptedServer) -> PromptExpander:
        return CachedExpander(
            ChatExpander(ChatConfig(url=elsewhere.url, model="m", timeout_seconds=HANG_SECONDS))
        )

    async def test_a_job_that_asks_for_it_gets_an_expanded_prompt(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer
    ) -> None:
        elsewhere.always = chat_reply("a fluffy cat in the sun")
        job = (await submit(http, "a cat", expand_prompt=True)).json()
        assert job["input"]["prompt"] == "a fluffy cat in the sun"
        assert (job["prompt"]["original"], job["prompt"]["expansion"]) == ("a cat", "expanded")
        assert (await http.get("/")).json()["expands_prompts"] is True
        plain = (await submit(http, "a cat")).json()
        assert (plain["input"]["prompt"], plain["prompt"]["expansion"]) == ("a cat", "")
        assert len(elsewhere.requests) == 1

    async def test_the_same_seed_gives_the_same_expansion(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer
    ) -> None:
        elsewhere.script.extend([chat_reply("one text"), chat_reply("another text")])
        body: dict[str, Any] = {"input": {"seed": 3}, "expand_prompt": True}
        prompts = [(await submit(http, "a cat", **body)).json()["input"]["prompt"] for _ in range(2)]
        assert prompts == ["one text", "one text"]
        other: dict[str, Any] = {"input": {"seed": 4}, "expand_prompt": True}
        assert (await submit(http, "a cat", **other)).json()["input"]["prompt"] == "another text"

    async def test_the_expanded_prompt_is_moderated_too(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer, store: JobStore
    ) -> None:
        elsewhere.always = chat_reply("a cat that drinks acmecola")
        job = (await submit(http, "a cat", expand_prompt=True)).json()
        assert job["input"]["prompt"] == "a cat"
        assert job["prompt"]["expansion"] == "refused"
        assert "brands" in job["prompt"]["reason"]
        assert "acmecola" not in str(job)

    async def test_the_record_holds_the_findings_of_both_prompts(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer
    ) -> None:
        elsewhere.always = chat_reply("a cat that watches the finale")
        for prompt in ("a cat", "the finale"):
            job = (await submit(http, prompt, expand_prompt=True)).json()
            assert job["input"]["prompt"] == "a cat that watches the finale"
            found = [
                (finding["category"], finding["action"]) for finding in job["prompt"]["verdict"]["findings"]
            ]
            assert found == [("spoilers", "flag")], prompt

    async def test_a_blocked_prompt_is_not_expanded(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer
    ) -> None:
        assert (await submit(http, "acmecola", expand_prompt=True)).status_code == 422
        assert elsewhere.requests == []

    @pytest.mark.parametrize(
        ("reply", "outcome"),
        [
            (None, "error"),
            (chat_reply("I'm sorry, I can't help with that."), "refused"),
            (chat_reply(None), "error"),
        ],
    )
    async def test_a_failed_expansion_keeps_the_original_prompt(
        self,
        http: httpx.AsyncClient,
        worker: HandWorker,
        elsewhere: ScriptedServer,
        reply: Any,
        outcome: str,
    ) -> None:
        elsewhere.always = reply
        job = (await submit(http, "a cat", expand_prompt=True)).json()
        assert (job["input"]["prompt"], job["prompt"]["expansion"]) == ("a cat", outcome)
        assert job["prompt"]["reason"]


async def test_expansion_is_refused_by_a_server_without_an_expander(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    refused = await submit(http, "a cat", expand_prompt=True)
    by_openai = await http.post("/v1/images/generations", json={"prompt": "a cat", "expand_prompt": True})
    assert (refused.status_code, by_openai.status_code) == (422, 400)
    assert refused.json()["errors"] == [{"field": "expand_prompt", "message": NOT_OFFERED}]
    assert by_openai.json()["error"]["param"] == "expand_prompt"
    assert by_openai.json()["error"]["message"] == f"expand_prompt=True: {NOT_OFFERED}"
    assert (await http.get("/v1/jobs")).json()["data"] == []
    assert (await submit(http, "a cat", expand_prompt=False)).status_code == 202
