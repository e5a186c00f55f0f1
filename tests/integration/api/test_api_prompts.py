"""Prompts at the API's door: cleaned, judged and made longer, before anything is stored."""

import hashlib
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.api.prompt_processor import NOT_OFFERED, PromptProcessor
from diffuserve.client.codec import decode
from diffuserve.domain.resources.job import JobResource
from diffuserve.domain.resources.model import ModelList
from diffuserve.domain.safety import Action, Stage
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.reaper import Reaper
from diffuserve.jobs.store import JobStore
from diffuserve.prompts.base import PromptExpander
from diffuserve.prompts.cache import CachedExpander
from diffuserve.prompts.chat import ChatConfig, ChatExpander
from diffuserve.safety.base import TextClassifier
from diffuserve.safety.moderation import ModerationClassifier
from diffuserve.safety.policy_file import parse_policy
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


@pytest.fixture
async def app(
    store: JobStore,
    artifacts: LocalArtifactStore,
    bus: MemoryEventBus,
    classifier: TextClassifier | None,
    is_open_when_down: bool,
    expander: PromptExpander | None,
) -> AsyncGenerator[FastAPI]:
    judge = PolicyFilter(POLICY, classifier, is_open_when_down=is_open_when_down)
    processor = PromptProcessor(judge, expander)
    yield create_app(store, artifacts, bus, ApiConfig(poll_seconds=0.2), None, processor)
    await processor.close()


async def submit(http: httpx.AsyncClient, prompt: str, **body: Any) -> httpx.Response:
    inputs = {"prompt": prompt, **body.pop("input", {})}
    return await http.post("/v1/jobs", json={"input": inputs} | body)


async def test_a_blocked_prompt_leaves_nothing_but_an_entry_without_words(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    answer = await submit(http, "a bottle of  A\u200bcmeCola")
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["category"]) == (422, "prompt_blocked", "brands")
    assert problem["retryable"] is False
    assert "cola" not in answer.text.lower()
    assert (await http.get("/v1/jobs")).json()["data"] == []
    assert await store.operations.lanes() == []

    [entry] = await store.audit.newest()
    assert (entry.stage, entry.category, entry.action) == (Stage.PROMPT, "brands", Action.BLOCK)
    assert entry.prompt_hash == hashlib.sha256(b"a bottle of AcmeCola").hexdigest()
    assert "house 7" in entry.filter
    assert "cola" not in repr(entry).lower()
    assert await store.audit.newest(entry.tenant_id) == [entry]
    assert await store.audit.newest("somebody else") == []


async def test_a_flagged_prompt_is_drawn_and_its_record_says_so(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    answer = await submit(http, "the season finale")
    job = answer.json()
    decode(JobResource, answer.content)
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


async def test_a_prompt_of_nothing_visible_is_refused(http: httpx.AsyncClient, worker: HandWorker) -> None:
    answer = await submit(http, "\u200b \u2060")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_params")
    assert answer.json()["errors"][0]["field"] == "input.prompt"


async def test_openai_and_flat_routes_refuse_a_blocked_prompt_in_their_own_words(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    openai = await http.post("/v1/images/generations", json={"prompt": "acmecola"})
    assert openai.status_code == 400
    assert openai.json()["error"]["code"] == "prompt_blocked"
    flat = await http.post("/generate", json={"prompt": "acmecola"})
    assert (flat.status_code, flat.json()["code"]) == (422, "prompt_blocked")


async def test_a_batch_with_a_blocked_item_is_refused_as_a_whole(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    items = [
        {"custom_id": str(n), "input": {"prompt": prompt}}
        for n, prompt in enumerate(["a cat", "acmecola", "a dog"] * 10)
    ]
    answer = await http.post("/v1/batches", json={"items": items})
    assert answer.status_code == 422
    assert {one["field"] for one in answer.json()["errors"]} >= {"items.1.input.prompt"}
    assert "brands" in answer.json()["errors"][0]["message"]
    assert (await http.get("/v1/batches")).json()["data"] == []
    assert len(await store.audit.newest()) == 10


async def test_items_of_a_batch_have_their_verdicts(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    prompts = ["a cat", "the   finale"] * 20
    items = [{"custom_id": str(n), "input": {"prompt": one}} for n, one in enumerate(prompts)]
    assert (await http.post("/v1/batches", json={"items": items})).status_code == 202
    jobs = (await http.get("/v1/jobs", params={"limit": 200})).json()["data"]
    seen = {(one["prompt"]["original"], one["prompt"]["verdict"]["action"]) for one in jobs}
    assert seen == {("a cat", "allow"), ("the   finale", "flag")}
    assert len(await store.audit.newest()) == 20


async def test_models_tell_their_filters(http: httpx.AsyncClient, worker: HandWorker) -> None:
    answer = await http.get("/v1/models")
    decode(ModelList, answer.content)
    [model] = answer.json()["data"]
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


async def test_the_audit_forgets_in_time(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore, artifacts: LocalArtifactStore
) -> None:
    await submit(http, "acmecola")
    await Reaper(store.housekeeping, artifacts).forget_outdated()
    assert len(await store.audit.newest()) == 1
    object.__setattr__(store.config, "audit_seconds", 0.0)
    await Reaper(store.housekeeping, artifacts).forget_outdated()
    assert await store.audit.newest() == []


class TestElsewhere:
    """Scores from a moderation server."""

    @pytest.fixture
    def classifier(self, elsewhere: ScriptedServer) -> TextClassifier:
        return ModerationClassifier(elsewhere.url, timeout_seconds=HANG_SECONDS)

    async def test_its_score_blocks(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer
    ) -> None:
        elsewhere.always = moderation_reply({"gambling": 0.6})
        answer = await submit(http, "a roulette wheel")
        assert (answer.status_code, answer.json()["category"]) == (422, "gambling")
        elsewhere.always = moderation_reply({"gambling": 0.4})
        assert (await submit(http, "a roulette wheel")).status_code == 202

    async def test_while_it_is_away_nothing_passes(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer, store: JobStore
    ) -> None:
        answer = await submit(http, "a cat")
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (503, "moderation_unavailable")
        assert problem["retryable"] is True
        assert answer.headers["retry-after"]
        assert (await submit(http, "acmecola")).json()["code"] == "prompt_blocked"
        assert (await http.get("/v1/jobs")).json()["data"] == []

    class TestOpen:
        @pytest.fixture
        def is_open_when_down(self) -> bool:
            return True

        async def test_while_it_is_away_the_rules_alone_decide(
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

    async def test_a_job_that_asks_gets_a_longer_prompt(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer
    ) -> None:
        elsewhere.always = chat_reply("a fluffy cat in the sun")
        job = (await submit(http, "a cat", expand_prompt=True)).json()
        assert job["input"]["prompt"] == "a fluffy cat in the sun"
        assert (job["prompt"]["original"], job["prompt"]["expansion"]) == ("a cat", "expanded")
        plain = (await submit(http, "a cat")).json()
        assert (plain["input"]["prompt"], plain["prompt"]["expansion"]) == ("a cat", "")
        assert len(elsewhere.requests) == 1

    async def test_a_seed_gives_the_same_text_again(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer
    ) -> None:
        elsewhere.script.extend([chat_reply("one text"), chat_reply("another text")])
        wish: dict[str, Any] = {"input": {"seed": 3}, "expand_prompt": True}
        prompts = [(await submit(http, "a cat", **wish)).json()["input"]["prompt"] for _ in range(2)]
        assert prompts == ["one text", "one text"]
        other: dict[str, Any] = {"input": {"seed": 4}, "expand_prompt": True}
        assert (await submit(http, "a cat", **other)).json()["input"]["prompt"] == "another text"

    async def test_what_the_language_model_writes_is_judged_too(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer, store: JobStore
    ) -> None:
        elsewhere.always = chat_reply("a cat that drinks acmecola")
        job = (await submit(http, "a cat", expand_prompt=True)).json()
        assert job["input"]["prompt"] == "a cat"
        assert job["prompt"]["expansion"] == "refused"
        assert "brands" in job["prompt"]["reason"]
        assert "acmecola" not in str(job)

    async def test_the_record_says_what_was_found_in_either_prompt(
        self, http: httpx.AsyncClient, worker: HandWorker, elsewhere: ScriptedServer
    ) -> None:
        elsewhere.always = chat_reply("a cat that watches the finale")
        for prompt in ("a cat", "the finale"):
            job = (await submit(http, prompt, expand_prompt=True)).json()
            assert job["input"]["prompt"] == "a cat that watches the finale"
            found = [(one["category"], one["action"]) for one in job["prompt"]["verdict"]["findings"]]
            assert found == [("spoilers", "flag")], prompt

    async def test_a_blocked_prompt_is_not_sent_on(
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
    async def test_whatever_goes_wrong_the_prompt_is_drawn_as_it_is(
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


async def test_a_server_without_a_language_model_says_so(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = (await submit(http, "a cat", expand_prompt=True)).json()
    assert (job["prompt"]["expansion"], job["prompt"]["reason"]) == ("error", NOT_OFFERED)
