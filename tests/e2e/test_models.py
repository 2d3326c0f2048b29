"""The other models the deployment needs: Kimi (the deepseek seam under another class), and speculative decoding."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

from tests.rig.server import Server

from .conftest import CONTRACT, PROMPTS, TOKENS, cli, sets


def test_kimi_with_a_random_draft_serves_patched(models: dict[str, Path], logs: Callable[[str], Path]) -> None:
    with Server(
        logs("kimi"),
        options=sets(CONTRACT),
        model=models["kimi"],
        draft=models["eagle3-deepseek"],
        trust_remote_code=True,
    ) as server:
        server.wait_ready()
        assert cli("verify-env").status == 0
        answer = server.generate(PROMPTS[0], TOKENS)
        assert len(answer["output_ids"]) == TOKENS
        found = re.search(r"; run (\S+)", server.text())
        assert found
        records = [json.loads(p.read_text()) for p in Path(found.group(1), "workers").glob("*.json")]
        assert {r["ready"]["shape"]["architecture"] for r in records} == {"DeepseekV3ForCausalLM"}
        assert server.stop(signal.SIGINT) == 130


def test_llama_with_a_trained_eagle3_draft_serves_patched(models: dict[str, Path], logs: Callable[[str], Path]) -> None:
    with Server(logs("llama"), options=sets(CONTRACT), model=models["llama"], draft=models["eagle3-llama"]) as server:
        server.wait_ready()
        assert cli("verify-env").status == 0
        answer = server.generate(PROMPTS[0], 64)
        accepted = answer["meta_info"]["completion_tokens"] / answer["meta_info"]["spec_verify_ct"]
        assert accepted > 2.5
        # A worker dies: the server ends, the launcher says so, and nothing is left.
        server.titled("sglang::scheduler")[0].kill()
        server.wait(lambda: "server_ended" in server.text() or server.process.poll() is not None, limit=60)
        assert server.process.wait(timeout=60) == 1
        server.wait_gone(10.0)
        assert "server_ended: SGLang ended with" in server.text()
